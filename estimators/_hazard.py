"""A forgetting survival curve on a fixed grid: occurrence over exposure, bin by bin.

Whoever is alive adds exposure to the bins it ages through, whoever finishes adds one event to the
bin it finishes in, whoever is cut off simply stops adding exposure: right censoring and late entry
(left truncation) need no further care.  With hazard rate d/E constant within a bin, this is the
piecewise-exponential form of the Kaplan-Meier curve (Kaplan & Meier 1958; Holford 1980).
"""

import math
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.observation import Floats

SPAN, BINS = 16.0, 160
"""Width of the grid in log tokens (1 token to 8.9 million), bins of 10 % length."""
WIDTH = SPAN / BINS

PRIOR_TAIL_RATE = 1.0
"""Largest hazard per unit of log length where nothing was seen: what has come far has an even
chance of doubling.  Below that the prior is a standard normal's about `centre`, so that nothing is
expected to end at lengths far below it."""
PRIOR_EXPOSURE = 2.0
"""Trajectories the prior counts for, in every bin."""


_Z = np.linspace(-8.0, 12.0, 2001)
_NORMAL_HAZARD = np.array(
    [math.exp(-z * z / 2) / (math.sqrt(math.pi / 2) * math.erfc(z / math.sqrt(2))) for z in _Z]
)


def normal_hazard(z: Floats) -> Floats:
    """phi(z) / (1 - Phi(z)), interpolated; constant outside -8..12."""
    return np.asarray(np.interp(z, _Z, _NORMAL_HAZARD))


def _coverage(at: Floats) -> Floats:
    """(BINS,) summed share of each bin that lies below the points `at`, in bins."""
    bins = np.minimum(at.astype(np.int64), BINS - 1)
    inside = np.bincount(bins, weights=at - bins, minlength=BINS)
    count = np.bincount(bins, minlength=BINS)
    return np.asarray(inside + count[::-1].cumsum()[::-1] - count)


@dataclass
class Hazard:
    """Events and exposure per bin."""

    lowest: float = 0.0
    """Where the grid begins, log tokens."""
    centre: float = 0.0
    """Where the prior's body lies."""
    events: Floats = field(default_factory=lambda: np.zeros(BINS))
    exposure: Floats = field(default_factory=lambda: np.zeros(BINS))
    """Passages through each bin (1 = the whole bin, once)."""

    def add_exposure(self, start: Floats, end: Floats) -> None:
        """(m,) grid positions between which m trajectories aged."""
        start, end = self._bins(start), self._bins(end)
        forward = end > start
        self.exposure += _coverage(end[forward]) - _coverage(start[forward])

    def add_events(self, at: Floats) -> None:
        """(m,) grid positions at which m trajectories finished."""
        bins = np.minimum(self._bins(at).astype(np.int64), BINS - 1)
        self.events += np.bincount(bins, minlength=BINS)

    def scale(self, keep: float) -> None:
        """Forget: keep this share of the evidence."""
        self.events *= keep
        self.exposure *= keep

    @property
    def edges(self) -> Floats:
        """(BINS + 1,) grid positions."""
        return self.lowest + np.linspace(0.0, SPAN, BINS + 1)

    def cumulative(self) -> Floats:
        """(BINS + 1,) cumulative hazard at `edges`; strictly increasing, survival is exp(-it)."""
        exposure = np.maximum(self.exposure, 0.0) * WIDTH
        prior = PRIOR_EXPOSURE * WIDTH
        prior_rate = np.minimum(normal_hazard(self.edges[:-1] - self.centre), PRIOR_TAIL_RATE)
        rate = (self.events + prior_rate * prior) / (exposure + prior)
        return np.concatenate(([0.0], np.cumsum(rate * WIDTH)))

    def quantiles(self, levels: Floats) -> Floats:
        """Grid positions that these shares do not pass."""
        return np.asarray(np.interp(-np.log1p(-levels), self.cumulative(), self.edges))

    def _bins(self, at: Floats) -> Floats:
        return np.clip((at - self.lowest) / WIDTH, 0.0, BINS)
