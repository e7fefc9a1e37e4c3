"""A policy that moves every trajectory once, in the middle of what it writes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place


@dataclass
class Shuffling(Stateless):
    """Places in turn, and moves to the next living replica after `after` tokens."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED
    after: int = 16

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        t, replicas = observation.trajectories, observation.replicas
        alive = np.flatnonzero(replicas.alive).tolist()
        if not alive:
            return []
        turns = enumerate(observation.queued.tolist())
        decisions = [
            place(observation, row, alive[n % len(alive)], "shuffling", "in turn")
            for n, row in turns
        ]
        for row in observation.running.tolist():
            others = [r for r in alive if r != t.replica_row[row]]
            if others and not t.moves[row] and t.generated_tokens[row] >= self.after:
                target = replicas.names[others[row % len(others)]]
                number = int(t.trajectory_id[row])
                decisions.append(
                    Decision(number, Action.MIGRATE, "shuffling", "once", target, row=row)
                )
        return decisions
