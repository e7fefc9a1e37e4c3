"""Policies that decide where and when each trajectory runs."""
