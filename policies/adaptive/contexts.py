"""What contexts will hold, and how much of its time a trajectory is in the batch.

Agents' contexts grow by more than they write: tools append to them, and while a tool runs their
trajectory holds no slot.  Neither is in the observation, but both show in what engines report:

    growth = (tokens in KV caches / running - prompt) / written        per token written
    stretch = in flight / running                                       iterations per token

as means over the fleet, smoothed.  They are learned only where trajectories have turns.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from steersman.estimators.observation import Floats, Observation

SMOOTHING = 0.1
"""Weight of one tick: ten ticks are seconds, and contexts grow in minutes."""
LEAST_WRITTEN = 50.0
"""Tokens written, on average, from which growth can be told."""
MOST_GROWTH, MOST_STRETCH = 100.0, 20.0


@dataclass
class Contexts:
    """Learned over steps; two numbers."""

    growth: float = 1.0
    stretch: float = 1.0

    def learn(self, observation: Observation) -> None:
        """From one observation."""
        t, r, running = observation.trajectories, observation.replicas, observation.running
        if not len(running) or not t.turns.any():
            return
        in_batch = float(r.running[r.alive].sum())
        written = float(t.generated_tokens[running].mean())
        if in_batch < 1 or written < LEAST_WRITTEN:
            return
        held = float((r.kv_cache_usage * r.kv_capacity_tokens)[r.alive].sum()) / in_batch
        if held > 0:
            growth = (held - float(t.prompt_tokens[running].mean())) / written
            self.growth += SMOOTHING * (min(max(growth, 1.0), MOST_GROWTH) - self.growth)
        if not r.waiting[r.alive].any():  # what waits in an engine's queue waits for no tool
            stretch = len(running) / in_batch
            self.stretch += SMOOTHING * (min(max(stretch, 1.0), MOST_STRETCH) - self.stretch)

    def now(self, observation: Observation) -> Floats:
        """(n,) tokens of context."""
        t = observation.trajectories
        return np.asarray(t.prompt_tokens + self.growth * t.generated_tokens)

    def state_dict(self) -> dict[str, Any]:
        """Both."""
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Contexts":
        """The inverse of `state_dict`."""
        return cls(float(state["growth"]), float(state["stretch"]))
