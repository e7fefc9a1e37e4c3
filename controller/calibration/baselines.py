"""What one would forecast lengths with for want of the whole estimator: one source each.

- `naive`: quantiles of the completed lengths, minus the age;
- `global`: a survival curve over age, the same for all (`curve_baseline`);
- `prompt_history`: the survival model with the prompt's earlier steps, without siblings;
- `siblings`: the survival model with the group's own members, without earlier steps;
- `gradient_boosting`: quantile trees on plain features (`boosted_baseline`).

`prompt_history` and `siblings` are the estimator itself, less a source.  `global` is the plain
curve, which did better than the estimator less both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steersman.controller.calibration.boosted_baseline import BoostedBaseline
from steersman.controller.calibration.curve_baseline import CurveBaseline
from steersman.controller.calibration.plain import Plain, within_cap
from steersman.estimators.contract import LengthEstimator
from steersman.estimators.forecast import QUANTILES, LengthForecast
from steersman.estimators.length import SurvivalLength
from steersman.estimators.observation import Floats, Observation

REMEMBERED = 2000
"""Completed lengths: about eight steps of 32 groups of 8."""


@dataclass
class NaiveLength(Plain):
    """Quantiles of the last completed lengths, minus the age."""

    _lengths: Floats = field(default_factory=lambda: np.zeros(0), init=False)

    def observe(self, observation: Observation) -> None:
        """Remember what has ended."""
        e = observation.ended
        new = e.generated_tokens[~e.censored].astype(np.float64)
        self._lengths = np.concatenate((self._lengths, new))[-REMEMBERED:]

    def forecast(self, observation: Observation) -> LengthForecast:
        """Uniform over the cap while nothing has ended."""
        t = observation.trajectories
        if not len(self._lengths):
            left = t.max_new_tokens - t.generated_tokens
            return within_cap(observation, left[:, None] * np.array(QUANTILES))
        quantiles = np.quantile(self._lengths, QUANTILES).astype(np.float64)
        return within_cap(observation, quantiles[None, :] - t.generated_tokens[:, None])


def length_baselines() -> Mapping[str, LengthEstimator]:
    """Fresh ones, by name."""
    return {
        "naive": NaiveLength(),
        "global": CurveBaseline(),
        "prompt_history": SurvivalLength(use_siblings=False),
        "siblings": SurvivalLength(use_history=False),
        "gradient_boosting": BoostedBaseline(),
    }
