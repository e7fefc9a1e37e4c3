"""Policies that decide which running trajectories are not worth finishing."""
