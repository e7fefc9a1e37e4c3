"""Prompts chosen beside a trainer: the pool, what is known of each, and whose turn it is."""
