"""Every trajectory runs to its own end.  Correctness class: exact."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import Stateless, StoppingPolicy
from steersman.policies.decision import Decision


@dataclass
class Never(Stateless):
    """No options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Nothing is stopped."""
        return []


PLUGIN: type[StoppingPolicy] = Never
