"""A policy that places in turn and moves every trajectory again and again."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place


@dataclass
class Moving(Stateless):
    """Up to `most` times each, after each `every` tokens."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED
    every: int = 8
    most: int = 3

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        t, replicas = observation.trajectories, observation.replicas
        alive = np.flatnonzero(replicas.alive).tolist()
        if not alive:
            return []
        turns = enumerate(observation.queued.tolist())
        decisions = [
            place(observation, row, alive[n % len(alive)], "moving", "in turn") for n, row in turns
        ]
        for row in observation.running.tolist():
            others = [r for r in alive if r != t.replica_row[row]]
            moves = int(t.moves[row])
            due = t.generated_tokens[row] >= self.every * (moves + 1)
            if others and moves < self.most and due:
                target = replicas.names[others[row % len(others)]]
                number = int(t.trajectory_id[row])
                decisions.append(
                    Decision(number, Action.MIGRATE, "moving", "again", target, row=row)
                )
        return decisions
