"""A policy that never gets anywhere, and one that does not say what it does."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import Stateless
from steersman.policies.decision import Decision


@dataclass
class Raises(Stateless):
    """Every decision fails."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        raise ArithmeticError("no idea")


class Silent(Stateless):
    """It has no correctness class."""
