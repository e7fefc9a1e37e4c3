"""Whether the forecasts can be relied on: those who ended should have been those with least left.

Between two ticks some of what was running ends.  In each pair of one that ended and one that goes
on, the first had less left; a forecast that gave it less was right (Harrell's concordance).  The
mean over pairs is .5 for forecasts that know nothing, 1 for perfect ones, and below .5 for
forecasts that are wrong in earnest: a broken log, an estimator fed with another run's lengths.

Each end counts once, however many go on; the mean forgets.  If it is below .5 by more than `DOUBT`
standard errors (those of a uniform variable: 1 / sqrt(12 m)), lengths are not used until it is back
above.  Nothing is believed less for being vague: scenarios are as wide as the forecast.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation

MEMORY_ENDS = 400.0
"""Ends after which 63 % is forgotten: some steps of a small trainer, a tick of a large one."""
DOUBT = 2.0
FEWEST_ENDS = 4.0
"""Ends before which nothing is concluded: siblings end together."""


@dataclass
class Trust:
    """Follows one run."""

    right: float = 0.0
    """Sum over ends of the share of pairs that were forecast in their order, with forgetting."""
    ends: float = 0.0
    """Likewise, of ends."""
    doubted: bool = False
    _id: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Running at the last tick, ascending."""
    _left: Floats = field(default_factory=lambda: np.zeros(0))
    """Tokens that each was expected to have left, the median."""

    @property
    def concordance(self) -> float:
        """Share of pairs in the right order; .5 before data."""
        return self.right / self.ends if self.ends > 0 else 0.5

    def follow(self, observation: Observation, forecast: Forecast) -> bool:
        """Take in an observation and its forecast; whether lengths may be used."""
        self._judge(observation)
        running = observation.running
        self._id = observation.trajectories.trajectory_id[running]
        self._left = forecast.length.median[running]
        deviation = 1.0 / np.sqrt(12.0 * max(self.ends, 1e-9))
        off = self.concordance - 0.5
        if self.ends >= FEWEST_ENDS and off < -DOUBT * deviation:
            self.doubted = True
        elif off > 0:
            self.doubted = False
        return not self.doubted

    def _judge(self, observation: Observation) -> None:
        t = observation.trajectories
        if not len(self._id):
            return
        still = np.isin(self._id, t.trajectory_id[t.phase == Phase.RUNNING])
        whole = observation.ended.trajectory_id[~observation.ended.censored]
        ended = np.isin(self._id, whole)
        if not ended.any() or not still.any():
            return
        others, own = np.sort(self._left[still]), self._left[ended]
        above = len(others) - np.searchsorted(others, own, side="right")
        below = np.searchsorted(others, own, side="left")
        share = (above + 0.5 * (len(others) - above - below)) / len(others)
        keep = float(np.exp(-len(own) / MEMORY_ENDS))
        self.right = keep * self.right + float(share.sum())
        self.ends = keep * self.ends + len(own)

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "right": self.right,
            "ends": self.ends,
            "doubted": self.doubted,
            "id": self._id.tolist(),
            "left": self._left.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Trust":
        """The inverse of `state_dict`."""
        ids = np.array(state["id"], dtype=np.int64)
        left = np.array(state["left"], dtype=np.float64)
        return cls(state["right"], state["ends"], state["doubted"], ids, left)
