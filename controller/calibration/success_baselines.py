"""What one would forecast pass rates with for want of an estimator.

- `discounted_beta`: passes and fails per prompt, discounted by `BETA_DISCOUNT` per step, on top of
  a uniform prior; P(degenerate) by the Beta-binomial formula (the family of MoPPS, arXiv
  2507.04632);
- `moving_average`: the prompt's rate moves by `MOVING_GAIN` of the way to each visit's;
- `last_rate`: the rate of the prompt's last visit;
- `global_mean`: the mean of all rewards so far, for every prompt.

The last three forecast a prompt never seen by the global mean, and P(degenerate) = p^n + (1-p)^n.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.observation import Floats, Ints

BETA_DISCOUNT, MOVING_GAIN = 0.97, 0.6
"""Of those tried on a drifting policy the best: discount .9-.99 at n = 16, gain .3-.6."""


@dataclass
class MovingRate:
    """Each prompt's rate; gain 1: the last one; gain 0: always the global mean."""

    gain: float
    _rates: dict[int, float] = field(default_factory=dict)
    _passes: float = 0.5
    _samples: float = 1.0

    def predict(self, keys: Ints, size: int, step: int) -> tuple[Floats, Floats]:
        """(m,) pass probability and P(degenerate)."""
        mean = self._passes / self._samples
        p = np.array([self._rates.get(key, mean) for key in keys.tolist()])
        return p, p**size + (1.0 - p) ** size

    def learn(self, keys: Ints, rewards: Floats, step: int) -> None:
        """(m, n) rewards."""
        self._passes += float(rewards.sum())
        self._samples += rewards.size
        if self.gain > 0.0:
            for key, rate in zip(keys.tolist(), rewards.mean(axis=1).tolist(), strict=True):
                old = self._rates.get(key, rate)
                self._rates[key] = old + self.gain * (rate - old)


@dataclass
class DiscountedBeta:
    """Discounted passes and fails of each prompt, and the step they belong to."""

    discount: float
    _counts: dict[int, tuple[float, float, int]] = field(default_factory=dict)

    def predict(self, keys: Ints, size: int, step: int) -> tuple[Floats, Floats]:
        """(m,) pass probability and P(degenerate)."""
        a, b = self._parameters(keys, step)
        draws = np.arange(size)[:, None]
        all_pass = ((a + draws) / (a + b + draws)).prod(axis=0)
        all_fail = ((b + draws) / (a + b + draws)).prod(axis=0)
        return a / (a + b), all_pass + all_fail

    def learn(self, keys: Ints, rewards: Floats, step: int) -> None:
        """(m, n) rewards."""
        a, b = self._parameters(keys, step)
        passes = rewards.sum(axis=1)
        a, b = a + passes - 1.0, b + rewards.shape[1] - passes - 1.0
        for key, *counts in zip(keys.tolist(), a.tolist(), b.tolist(), strict=True):
            self._counts[key] = (counts[0], counts[1], step)

    def _parameters(self, keys: Ints, step: int) -> tuple[Floats, Floats]:
        known = np.array([self._counts.get(key, (0.0, 0.0, step)) for key in keys.tolist()])
        counts = known.reshape(-1, 3).T
        keep = self.discount ** (step - counts[2])
        return 1.0 + counts[0] * keep, 1.0 + counts[1] * keep


def baselines() -> Mapping[str, MovingRate | DiscountedBeta]:
    """Fresh ones, by name."""
    return {
        "discounted_beta": DiscountedBeta(BETA_DISCOUNT),
        "moving_average": MovingRate(MOVING_GAIN),
        "last_rate": MovingRate(1.0),
        "global_mean": MovingRate(0.0),
    }
