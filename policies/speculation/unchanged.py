"""Engines draft as they were started.  Correctness class: exact."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import SpeculationPolicy, Stateless
from steersman.policies.decision import DraftDecision


@dataclass
class Unchanged(Stateless):
    """No options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[DraftDecision]:
        """Nothing is changed."""
        return []


PLUGIN: type[SpeculationPolicy] = Unchanged
