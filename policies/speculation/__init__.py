"""Policies that decide how many tokens each replica drafts ahead of verifying them."""
