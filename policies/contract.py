"""What every policy promises.

A policy is a dataclass: its fields are its options, with defaults that were tested.  `decide` gets
values and returns values: no clock (`observation.now_s`), no randomness but `rng`, no I/O.  Learned
or remembered state is a private field that `state_dict` shows.

A policy may say which of its options `steersman tune` searches, and where, in a class variable:
`TUNABLE: ClassVar[Mapping[str, Range]]`.  The defaults lie within the ranges.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Observation
from steersman.policies.decision import Decision


@dataclass(frozen=True)
class Range:
    """Values of an option that are worth trying, both ends included."""

    low: float
    high: float
    log: bool = False
    """Values differ by factors, not by differences."""
    integer: bool = False

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"{self}: low must be below high, both finite")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: a search by factors starts above 0")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


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
