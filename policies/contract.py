"""What every policy promises.

A policy is a dataclass: its fields are its options, with defaults that were tested.  `decide` gets
values and returns values: no clock (`observation.now_s`), no randomness but `rng`, no I/O.  Learned
or remembered state is a private field that `state_dict` shows.
"""

from typing import Any, Protocol

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Observation
from steersman.policies.decision import Decision


class PlacementPolicy(Protocol):
    """Decides where and when trajectories run: place, migrate, isolate, restart, defer, stop."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Decisions for this tick, at most one per trajectory.

        A waiting trajectory without a decision keeps waiting, so a policy must place every one of
        them sooner or later as long as a replica is alive.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the policy remembers; empty for a stateless one."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what it remembers."""


class Stateless:
    """For policies that remember nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
