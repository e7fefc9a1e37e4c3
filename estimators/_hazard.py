"""A forgetting survival curve on a fixed grid: occurrence over exposure, bin by bin.

Whoever is alive adds exposure to the bins it ages through, whoever finishes adds one event to the
bin it finishes in, whoever is cut off simply stops adding exposure: right censoring and late entry
(left truncation) need no further care.  With hazard rate d/E constant within a bin, this is the
piecewise-exponential form of the Kaplan-Meier curve (Kaplan & Meier 1958; Holford 1980).
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.observation import Floats

LOWEST, HIGHEST, BINS = 0.0, 16.0, 160
"""Grid in log tokens: 1 token to 8.9 million, bins of 10 % length."""
WIDTH = (HIGHEST - LOWEST) / BINS
EDGES = np.linspace(LOWEST, HIGHEST, BINS + 1)

PRIOR_RATE = 1.0
"""Hazard per unit of log length where nothing was seen: what has reached length L has an even
chance of passing 2 L.  Length distributions of reasoning models are between this and lognormal."""
PRIOR_EXPOSURE = 2.0
"""Trajectories the prior counts for, in every bin."""


def _coverage(points: Floats) -> Floats:
    """(BINS,) summed share of each bin that lies below the points."""
    at = np.clip((points - LOWEST) / WIDTH, 0.0, BINS)
    bins = np.minimum(at.astype(np.int64), BINS - 1)
    inside = np.bincount(bins, weights=at - bins, minlength=BINS)
    count = np.bincount(bins, minlength=BINS)
    return np.asarray(inside + count[::-1].cumsum()[::-1] - count)


@dataclass
class Hazard:
    """Events and exposure per bin."""

    events: Floats = field(default_factory=lambda: np.zeros(BINS))
    exposure: Floats = field(default_factory=lambda: np.zeros(BINS))
    """Passages through each bin (1 = the whole bin, once)."""

    def add_exposure(self, start: Floats, end: Floats) -> None:
        """(m,) grid positions between which m trajectories aged."""
        forward = end > start
        self.exposure += _coverage(end[forward]) - _coverage(start[forward])

    def add_events(self, at: Floats) -> None:
        """(m,) grid positions at which m trajectories finished."""
        bins = np.clip((at - LOWEST) / WIDTH, 0, BINS - 1).astype(np.int64)
        self.events += np.bincount(bins, minlength=BINS)

    def scale(self, keep: float) -> None:
        """Forget: keep this share of the evidence."""
        self.events *= keep
        self.exposure *= keep

    def cumulative(self) -> Floats:
        """(BINS + 1,) cumulative hazard at `EDGES`; strictly increasing, survival is exp(-it)."""
        exposure = np.maximum(self.exposure, 0.0) * WIDTH
        prior = PRIOR_EXPOSURE * WIDTH
        rate = (self.events + PRIOR_RATE * prior) / (exposure + prior)
        return np.concatenate(([0.0], np.cumsum(rate * WIDTH)))
