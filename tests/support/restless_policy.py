"""A policy that moves every trajectory once it has begun, and then puts a group off."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place


@dataclass
class Restless(Stateless):
    """Places on the first replica."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        t, queued = observation.trajectories, observation.queued.tolist()
        decisions = [place(observation, row, 0, "restless", "here") for row in queued]
        second = observation.replicas.names[1]
        for row in observation.running.tolist():
            action = Action.DEFER if t.moves[row] else Action.MIGRATE
            may = t.generated_tokens[row] > 0 and not t.deferred[row]
            if may and (action is Action.MIGRATE or t.group_row[row] % 2):
                target = "" if action is Action.DEFER else second
                trajectory_id = int(t.trajectory_id[row])
                decisions.append(Decision(trajectory_id, action, "restless", "on", target, row=row))
        return decisions
