"""A forgetting survival curve on a fixed grid: occurrence over exposure, bin by bin.

Whoever is alive adds exposure to the bins it ages through, whoever finishes adds one event to the
bin it finishes in, whoever is cut off simply stops adding exposure: right censoring and late entry
(left truncation) need no further care.  With hazard rate d/E constant within a bin, this is the
piecewise-exponential form of the Kaplan-Meier curve (Kaplan & Meier 1958; Holford 1980).
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.observation import Floats

SPAN, BINS = 16.0, 160
"""Width of the grid in log tokens (1 token to 8.9 million), bins of 10 % length."""
WIDTH = SPAN / BINS

PRIOR_RATE = 1.0
"""Hazard per unit of log length where nothing was seen: what has reached length L has an even
chance of passing 2 L.  Length distributions of reasoning models are between this and lognormal."""
PRIOR_EXPOSURE = 2.0
"""Trajectories the prior counts for, in every bin."""


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
        rate = (self.events + PRIOR_RATE * prior) / (exposure + prior)
        return np.concatenate(([0.0], np.cumsum(rate * WIDTH)))

    def quantiles(self, levels: Floats) -> Floats:
        """Grid positions that these shares do not pass."""
        return np.asarray(np.interp(-np.log1p(-levels), self.cumulative(), self.edges))

    def _bins(self, at: Floats) -> Floats:
        return np.clip((at - self.lowest) / WIDTH, 0.0, BINS)
