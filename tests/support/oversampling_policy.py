"""A policy that asks for more groups than are wanted, and puts off the rest of them."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy, Stateless
from steersman.policies.decision import Action, Decision, place


@dataclass
class KeepsFirst(Stateless):
    """The first complete groups make the batch."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL
    restarting: bool = False
    """Whether what runs is thrown away first."""
    parking: bool = True
    """Whether the rest is put off at all."""
    more: float = 2.0
    """Groups asked for over those wanted."""

    def groups_to_ask(self, groups_wanted: int) -> int:
        """So many times as many."""
        return math.ceil(self.more * groups_wanted)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place in turn; stop the step when enough groups are complete."""
        t, trainer = observation.trajectories, observation.trainer
        alive = np.flatnonzero(observation.replicas.alive)
        if trainer.step != self._step():
            self._seen = (trainer.step, len(observation.groups))
        complete = self._seen[1] - len(observation.groups)
        if complete < trainer.groups_wanted or not self.parking:
            queued = np.flatnonzero(t.phase == Phase.QUEUED).tolist()
            return [
                place(observation, row, int(alive[row % len(alive)]), "test", "") for row in queued
            ]
        going = np.flatnonzero(np.isin(t.phase, (Phase.QUEUED, Phase.RUNNING))).tolist()
        return [self._ended(int(t.trajectory_id[row]), int(t.phase[row]), row) for row in going]

    def _ended(self, trajectory_id: int, phase: int, row: int) -> Decision:
        again = self.restarting and phase == Phase.RUNNING
        action = Action.RESTART if again else Action.DEFER
        return Decision(trajectory_id, action, "test", "", row=row)

    def _step(self) -> int:
        self._seen: tuple[int, int] = getattr(self, "_seen", (-1, 0))
        return self._seen[0]


PLUGIN: type[PlacementPolicy] = KeepsFirst
