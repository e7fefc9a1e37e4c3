"""Sticky, else fewest in flight: verl's `GlobalRequestLoadBalancer`.

A trajectory that was on a replica returns to it while that replica lives; any other goes to the
living replica with the fewest requests in flight, ties at random.  In flight is counted here, from
the placements, not read from the engines; what is placed in this tick counts.  Every waiting
trajectory is placed at once: what a replica cannot run waits in its engine.  Nothing is ever moved.
Correctness class: exact.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints, Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._fewest import fewest_first
from steersman.policies.placement._homes import Homes


def home_or_fewest(
    observation: Observation, homes: Ints, rng: np.random.Generator, policy: str
) -> list[Decision]:
    """Place everything that waits; `homes` (n,), where each was last, is brought up to date."""
    alive, names = observation.replicas.alive, observation.replicas.names
    queued = observation.queued
    if not len(queued) or not alive.any():
        return []
    count = observation.inflight()
    sticky = (homes[queued] >= 0) & alive[homes[queued]]
    count += np.bincount(homes[queued[sticky]], minlength=len(names))
    fresh = queued[~sticky]
    living = np.flatnonzero(alive)
    chance = iter(rng.random(len(fresh) + len(living)).tolist())
    homes[fresh] = fewest_first(count, living, len(fresh), lambda row, n: next(chance))
    reasons = ("fewest in flight", "returns to its replica")
    ids = observation.trajectories.trajectory_id[queued].tolist()
    return [
        Decision(i, Action.PLACE, policy, reasons[s], names[r], row=row)
        for i, s, r, row in zip(
            ids, sticky.tolist(), homes[queued].tolist(), queued.tolist(), strict=True
        )
    ]


@dataclass
class StickyLeastInflight:
    """No options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    _homes: Homes = field(default_factory=Homes, init=False)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits."""
        homes = self._homes.update(observation)
        return home_or_fewest(observation, homes, rng, "sticky_least_inflight")

    def state_dict(self) -> dict[str, Any]:
        """Where everyone was."""
        return self._homes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace where everyone was."""
        self._homes = Homes.from_state(state)


PLUGIN: type[PlacementPolicy] = StickyLeastInflight
