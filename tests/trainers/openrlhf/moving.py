"""A placement that puts everything on one engine, and moves each sample once it has begun."""

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
    """From the first to the second."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        t, names = observation.trajectories, observation.replicas.names
        decisions = [
            place(observation, row, 0, "moving", "here") for row in observation.queued.tolist()
        ]
        for row in observation.running.tolist():
            if len(names) > 1 and not t.moves[row] and t.generated_tokens[row] > 0:
                target = names[1 - int(t.replica_row[row])]
                trajectory_id = int(t.trajectory_id[row])
                decisions.append(
                    Decision(trajectory_id, Action.MIGRATE, "moving", "on", target, row=row)
                )
        return decisions
