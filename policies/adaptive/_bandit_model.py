"""What each arm costs against the default: one Kalman filter over the level and all differences.

A step under arm a in context x = (1, features) has log cost  x.level + x.difference_a + noise, the
difference of the default being 0.  The state holds the level and all differences jointly: a step
under one arm says something of the level, and through it of every arm measured against it.  The
coefficients walk (West & Harrison 1997), so that old steps count less, and an arm that is not
played grows uncertain, up to its prior.

One bad step is weak evidence.  Where it lies more than `LIMIT` predicted deviations off:

- an arm whose cost is known hardly moves: the noise is widened as Huber's weights would;
- for one whose cost is known no better than by a single step, either the step stalled or the prior
  was wrong.  Both updates are made and mixed evenly, moments matched: the arm is in doubt, and not
  written off.

The noise is tracked on clipped squares, in which a stall counts little.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.observation import Floats

LEVEL_MEMORY = 10.0
"""Steps; the level walks with the workload, faster than what arms differ by."""
REGAIN = 20.0
"""In memories: after so long without a step, an arm has its prior's uncertainty again."""
NOISE, LEAST_NOISE, MOST_NOISE = 0.05, 0.02, 0.3
"""Deviation of one step's log cost: the first guess and the bounds."""
NOISE_GAIN = 0.05
"""Of log variance, per step: about 20 steps to learn it."""
CLIP, MEAN_CLIPPED = 4.0, 0.92
"""z^2 is clipped at 4; its mean is then .92 under a normal."""
LIMIT = 2.5
"""Deviations beyond which a step is an outlier."""


@dataclass
class ArmModel:
    """The filter.  Arm 0 is the default, whose difference is 0: its place is the level's."""

    prior_mean: Floats
    """(k,) log cost less the default's."""
    prior_deviation: Floats
    """(k,) of it, and of what each feature adds to it; of the default, the level's."""
    width: int
    """Length of x, the 1 included."""
    memory: float
    """Steps after which evidence on an arm that is played all the time has faded to 1/e."""

    mean: Floats = field(init=False)
    """(n,) n = k * width; the level comes first, in the place of the default's difference."""
    covariance: Floats = field(init=False)
    """(n, n)"""
    log_variance: float = field(default=2.0 * math.log(NOISE), init=False)

    def __post_init__(self) -> None:
        self._prior_variance = np.repeat(self.prior_deviation**2, self.width)
        self._prior_mean = np.zeros(self._prior_variance.size)
        self._prior_mean[:: self.width] = self.prior_mean
        self.mean, self.covariance = self._prior_mean.copy(), np.diag(self._prior_variance)
        self._walk = np.full(self.mean.size, self.memory**-2)  # in variances of the noise
        self._walk[0] = LEVEL_MEMORY**-2
        self._regain = self._prior_variance / (REGAIN * self.memory)
        self._regain[: self.width] = 0.0

    @property
    def variance(self) -> float:
        """Of one step's log cost."""
        return math.exp(self.log_variance)

    def rows(self, x: Floats) -> Floats:
        """(k, n) what each arm's log cost is made of in context x."""
        k = len(self.prior_mean)
        blocks = np.zeros((k, k, self.width))
        blocks[:, 0] = x
        blocks[np.arange(k), np.arange(k)] = x
        return blocks.reshape(k, -1)

    def differences(self, x: Floats) -> tuple[Floats, Floats]:
        """(k,) mean and deviation of each arm's log cost less the default's, in context x."""
        rows = self.rows(x)
        rows[:, : self.width] = 0.0
        spread = np.einsum("ij,ij->i", rows @ self.covariance, rows)
        return rows @ self.mean, np.sqrt(np.maximum(spread, 0.0))

    def surprise(self, arm: int, x: Floats, log_cost: float) -> float:
        """How far, in predicted deviations, a step lies from what is believed."""
        row = self.rows(x)[arm]
        total = float(row @ self.covariance @ row) + self.variance
        return (log_cost - float(row @ self.mean)) / math.sqrt(total)

    def update(self, arm: int, x: Floats, log_cost: float) -> None:
        """Take one step in."""
        self._grow_uncertain()
        row = self.rows(x)[arm]
        toward = self.covariance @ row
        unsure, noise = float(row @ toward), self.variance
        error = log_cost - float(row @ self.mean)
        z = error / math.sqrt(unsure + noise)
        excess = max(1.0, (z / LIMIT) ** 2)
        if excess > 1.0 and unsure > noise:
            stalled = 1.0 / (unsure + error**2)
            wrong = excess / (excess * unsure + noise)
            gain = 0.5 * (stalled + wrong)
            # of the two covariances, the prior's widened along `toward`, and of the two means
            kept = 0.5 * ((excess - 1.0) / unsure - wrong * excess - stalled)
            kept += (0.5 * (wrong - stalled) * error) ** 2
        else:
            gain = 1.0 / (unsure + noise * excess)
            kept = -gain
        self.mean += gain * error * toward
        self.covariance += kept * np.outer(toward, toward)
        self.covariance = 0.5 * (self.covariance + self.covariance.T)
        self._track_noise(z, noise / (unsure + noise))

    def forget(self, share: float) -> None:
        """Believe with probability `share` that every arm has changed: a mixture with the prior.

        The level stays where it was seen last.
        """
        gap = self.mean - self._prior_mean
        gap[: self.width] = 0.0
        self.mean = self.mean - share * gap
        spread = share * self._prior_variance + share * (1.0 - share) * gap**2
        self.covariance = (1.0 - share) * self.covariance + np.diag(spread)

    def state_dict(self) -> dict[str, Any]:
        """Mean, covariance and noise."""
        return {
            "mean": self.mean.tolist(),
            "covariance": self.covariance.tolist(),
            "log_variance": self.log_variance,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was learned."""
        self.mean = np.array(state["mean"])
        self.covariance = np.array(state["covariance"])
        self.log_variance = float(state["log_variance"])

    def _grow_uncertain(self) -> None:
        held = np.diag(self.covariance) < self._prior_variance
        growth = np.where(held, self._walk * self.variance + self._regain, 0.0)
        self.covariance[np.diag_indices_from(self.covariance)] += growth

    def _track_noise(self, z: float, share: float) -> None:
        moved = self.log_variance + NOISE_GAIN * share * (min(z * z, CLIP) - MEAN_CLIPPED)
        low, high = 2.0 * math.log(LEAST_NOISE), 2.0 * math.log(MOST_NOISE)
        self.log_variance = min(max(moved, low), high)
