"""RolloutPipe's frontier-group dispatch: admit the groups first that will be complete first.

Source: arXiv 2606.26997 (its abstract; the rest was not at hand).  A trainer that takes every
complete group at once and only accumulates gradients, the weights frozen, need not wait for a
step's last group.  It waits for the next few, the frontier; the requests of those are therefore
admitted before any other.

Here trajectories wait at the controller until a replica has room, and of those that wait, the
groups go first that were admitted earliest by the trainer, then those with the fewest unfinished
samples, then by id; each trajectory goes to the replica with the fewest in flight.  The frontier's
size plays no part in that order: the first k groups come first for every k.  No forecast is used.

It brings complete groups earlier where slots are scarce; the order alone leaves the last one, and
so the makespan, where it is.  Placing everything at once, in the same order, differs in that each
replica has its own queue, and a group waits for the slowest of them: holding trajectories back
shortens the makespan as well.  Nothing is gained while the engines have a slot for everything.
The trainer's part, to start on complete groups, is not here.
Correctness class: exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy, Range, Stateless
from steersman.policies.decision import Decision
from steersman.policies.placement._cut import frontier_first, place

NAME = "rollout_pipe"


@dataclass
class RolloutPipe(Stateless):
    """One option."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT
    TUNABLE: ClassVar[Mapping[str, Range]] = {
        # beyond a few per replica the queues in the engines bind as early as placing at once does
        "backlog": Range(0, 8, integer=True),
    }

    backlog: int = 1
    """Trajectories kept in a replica's own queue; 0 lets slots idle until the next decision."""

    def __post_init__(self) -> None:
        if self.backlog < 0:
            raise InvalidInputError(f"backlog is {self.backlog}; valid: 0 or more")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place as many as there is room for, the frontier first."""
        rows = frontier_first(observation)
        return place(observation, rows, NAME, "its group is needed next", self.backlog)


PLUGIN: type[PlacementPolicy] = RolloutPipe
