"""Prompts and whole groups for trainers' adapters, chosen and filtered outside a session."""
