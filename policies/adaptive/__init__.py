"""Policies that choose among whole stacks of mechanisms, and what they learn from whole steps."""
