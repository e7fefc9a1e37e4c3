"""A forgetting survival curve on a fixed grid: occurrence over exposure, bin by bin.

Whoever is alive adds exposure to the bins it ages through, whoever finishes adds one event to the
bin it finishes in, whoever is cut off simply stops adding exposure: right censoring and late entry
(left truncation) need no further care.  With hazard rate d/E constant within a bin, this is the
piecewise-exponential form of the Kaplan-Meier curve (Kaplan & Meier 1958; Holford 1980).
"""

import math
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.contract import State
from steersman.estimators.observation import Floats, Ints

_Z = np.linspace(-8.0, 12.0, 2001)
_NORMAL_HAZARD = np.array(
    [math.exp(-z * z / 2) / (math.sqrt(math.pi / 2) * math.erfc(z / math.sqrt(2))) for z in _Z]
)


def normal_hazard(z: Floats) -> Floats:
    """phi(z) / (1 - Phi(z)), interpolated; nothing below -8, z + 1 / z above 12 (to 1e-4): held
    constant there, the likelihood of a far censored member would curve the wrong way."""
    near: Floats = np.interp(z, _Z, _NORMAL_HAZARD)
    if z.max(initial=0.0) <= _Z[-1]:
        return near
    far = np.maximum(z, _Z[-1])
    return np.asarray(np.where(z > _Z[-1], far + 1 / far, near))


@dataclass
class Hazard:
    """Events and exposure per bin of `lowest` .. `highest`."""

    lowest: float
    highest: float
    prior_rate: Floats
    """(bins,) hazard per unit of the grid where nothing was seen."""
    prior_exposure: float
    """Passages through each bin that the prior counts for."""
    events: Floats = field(init=False)
    exposure: Floats = field(init=False)
    """Passages through each bin (1 = the whole bin, once)."""
    edges: Floats = field(init=False)
    """(bins + 1,) grid positions."""

    def __post_init__(self) -> None:
        self.edges = np.linspace(self.lowest, self.highest, self.bins + 1)
        self.events, self.exposure = np.zeros(self.bins), np.zeros(self.bins)

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.prior_rate)

    @property
    def width(self) -> float:
        """Of one bin."""
        return (self.highest - self.lowest) / self.bins

    def add(self, start: Floats, end: Floats, finished: Ints) -> None:
        """m trajectories aged from `start` to `end`; the rows `finished` of them ended there."""
        start, end = self._position(start), self._position(end)
        forward = end > start
        self.exposure += self._coverage(end[forward]) - self._coverage(start[forward])
        self.events += np.bincount(self.bin(end[finished]), minlength=self.bins)

    def scale(self, keep: float) -> None:
        """Forget: keep this share of the evidence."""
        self.events *= keep
        self.exposure *= keep

    def state_dict(self) -> State:
        """Events and exposure."""
        return {"events": self.events.tolist(), "exposure": self.exposure.tolist()}

    def load_state_dict(self, state: State) -> None:
        """Replace them."""
        self.events, self.exposure = np.array(state["events"]), np.array(state["exposure"])

    def rate(self) -> Floats:
        """(bins,) hazard per unit of the grid."""
        exposure = np.maximum(self.exposure, 0.0) * self.width
        prior = self.prior_exposure * self.width
        return np.asarray((self.events + self.prior_rate * prior) / (exposure + prior))

    def cumulative(self) -> Floats:
        """(bins + 1,) cumulative hazard at `edges`; survival is exp(-it)."""
        return np.concatenate(([0.0], np.cumsum(self.rate() * self.width)))

    def bin(self, position: Floats) -> Ints:
        """Bin of each position as `_position` gives it."""
        return np.minimum(position.astype(np.int64), self.bins - 1)

    def bin_of(self, at: Floats) -> Ints:
        """Bin of each point of the grid; points outside belong to the outermost bins."""
        return self.bin(self._position(at))

    def _position(self, at: Floats) -> Floats:
        """In bins from `lowest`."""
        return np.clip((at - self.lowest) / self.width, 0.0, self.bins)

    def _coverage(self, position: Floats) -> Floats:
        """(bins,) summed share of each bin that lies below the positions."""
        bins = self.bin(position)
        inside = np.bincount(bins, weights=position - bins, minlength=self.bins)
        count = np.bincount(bins, minlength=self.bins)
        return np.asarray(inside + count[::-1].cumsum()[::-1] - count)
