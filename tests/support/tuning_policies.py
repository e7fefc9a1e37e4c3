"""Policies whose best option is known by construction, found by dotted path.

Each lets no more trajectories run at once than an option says, so that more is faster: an iteration
of the engines costs about the same whatever its batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Observation
from steersman.policies.contract import Range, Stateless
from steersman.policies.decision import Action, Decision

MOST = 9


@dataclass
class Throttle(Stateless):
    """`at_once` trajectories run on the first replica until step `turn`; then `later(at_once)`."""

    at_once: int = 4
    turn: int = 1_000_000
    inert: float = 0.5
    """Changes nothing."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "at_once": Range(1, MOST - 1, integer=True),
        "inert": Range(0.0, 1.0),
    }

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place up to the limit."""
        early = observation.trainer.step < self.turn
        limit = self.at_once if early else self.later()
        queued = observation.queued[: max(limit - int(observation.inflight().sum()), 0)]
        ids, name = observation.trajectories.trajectory_id, observation.replicas.names[0]
        return [
            Decision(int(ids[row]), Action.PLACE, "throttle", "there is room", name, row=row)
            for row in queued.tolist()
        ]

    def later(self) -> int:
        """The limit from step `turn` on."""
        return self.at_once


@dataclass
class Betraying(Throttle):
    """What was good is bad from `turn` on."""

    def later(self) -> int:
        """The opposite."""
        return MOST - self.at_once


@dataclass
class Fading(Throttle):
    """What was good is hardly better than the default from `turn` on."""

    def later(self) -> int:
        """A fourth of the difference."""
        return 4 + (self.at_once - 4) // 4


@dataclass
class Misdeclared(Throttle):
    """Its default is outside its range."""

    at_once: int = MOST
