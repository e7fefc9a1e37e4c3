"""Policies that decide which prompts are rolled out, how often, and what of it is trained on."""
