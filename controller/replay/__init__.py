"""Replay: a run's own lengths, the live controller, a simulated fleet, virtual time."""
