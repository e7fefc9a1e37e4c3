"""How good probabilities were: Brier score, calibration error and AUC, with forgetting.

Every group is counted once, with the forecast before its first reward, and older groups by
exp(-age / MEMORY), age in groups.  Forecasts of P(degenerate) are binned by their value; per bin
the groups, their summed forecasts and the degenerate ones are kept.  Calibration error is the mean
over groups of |mean forecast - share degenerate| of their bin; AUC counts pairs within a bin half.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.observation import Bools, Floats

BINS = 20
MEMORY = 2000.0
"""Groups after which 63 % is forgotten: noise of the calibration error about 0.02."""


@dataclass
class Reliability:
    """Discounted sums."""

    bins: Floats = field(default_factory=lambda: np.zeros((3, BINS)))
    """Per bin of P(degenerate): groups, summed forecasts, degenerate groups."""
    errors: Floats = field(default_factory=lambda: np.zeros(2))
    """Samples, and their summed squared errors."""

    def add(
        self, forecast: Floats, degenerate: Bools, samples: Floats, squared_error: Floats
    ) -> None:
        """(m,) finished groups: forecast P(degenerate) and what came; samples and their errors."""
        keep = math.exp(-len(forecast) / MEMORY)
        at = np.minimum((forecast * BINS).astype(np.int64), BINS - 1)
        columns = (np.ones(len(at)), forecast, degenerate.astype(np.float64))
        counts = [np.bincount(at, weights=c, minlength=BINS) for c in columns]
        self.bins = self.bins * keep + np.stack(counts)
        self.errors = self.errors * keep + (samples.sum(), squared_error.sum())

    def figures(self) -> dict[str, float]:
        """By name; NaN where nothing was measured."""
        groups, forecast, degenerate = self.bins
        samples, squared = self.errors
        informative = groups - degenerate
        pairs = degenerate.sum() * informative.sum()
        won = degenerate * (np.cumsum(informative) - 0.5 * informative)
        total = groups.sum()
        return {
            "brier": float(squared / samples) if samples > 0 else math.nan,
            "degenerate_ece": float(np.abs(forecast - degenerate).sum() / total)
            if total > 0
            else math.nan,
            "degenerate_auc": float(won.sum() / pairs) if pairs > 0 else math.nan,
        }
