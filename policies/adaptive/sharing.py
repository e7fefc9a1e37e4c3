"""Whether replicas slow each other down: engines that share cores, a host's memory or a power cap.

Where they do, a replica runs faster while others stand idle, which each step's tail shows.  Between
two observations without prefills and drafts,

    log(measured / forecast seconds per iteration) = a + b log batch + gain * idle,

idle being the share of the time that the other replicas did nothing.  `gain` is fitted by recursive
least squares with forgetting and a ridge; the batch is in it because tails run small batches, and
an iteration model that is off there must not look like sharing.  On replicas that share nothing it
is 0, and nothing follows from it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Observation
from steersman.policies.adaptive._counters import COUNTERS, compared, reading

MEMORY = 500.0
"""Samples after which 63 % is forgotten."""
RIDGE = 5.0
"""Samples' worth of belief that there is nothing."""
FEWEST = 20.0
"""Samples before which nothing is concluded."""
LARGEST = 1.0
"""Bound of |gain|: a factor of 2.7."""


@dataclass
class Sharing:
    """Follows one run."""

    gain: float = 0.0
    """Log of an iteration's time with all others idle, over that with all others busy."""
    _gram: Floats = field(default_factory=lambda: np.zeros((3, 3)))
    _moment: Floats = field(default_factory=lambda: np.zeros(3))
    _names: tuple[str, ...] = ()
    _seen_s: float = 0.0
    _last: Floats = field(default_factory=lambda: np.zeros((COUNTERS, 0)))
    """(COUNTERS, r) the last reading."""

    def follow(self, observation: Observation, forecast: Forecast) -> None:
        """Take in an observation and its forecast."""
        r = observation.replicas
        now = reading(r)
        elapsed_s = observation.now_s - self._seen_s
        fresh = self._names != r.names
        grown = np.zeros_like(now) if fresh else now - self._last
        self._names, self._last, self._seen_s = r.names, now, observation.now_s
        living = int(r.alive.sum())
        if fresh or elapsed_s <= 0 or living < 2:
            return
        busy = np.clip(grown[1] / elapsed_s, 0.0, 1.0) * r.alive
        idle = 1.0 - (busy.sum() - busy) / (living - 1)
        seen = compared(observation, forecast, grown)
        if len(seen.rows):
            self._learn(seen.log_off, np.log(np.maximum(seen.batch, 1.0)), idle[seen.rows])

    def speed_up(self, active: int, living: int) -> float:
        """Factor (<= 1) on the times of `active` replicas if the others of `living` are idle."""
        if living < 2 or self._gram[0, 0] < FEWEST:
            return 1.0
        return float(np.exp(min(self.gain, 0.0) * (living - active) / (living - 1)))

    def _learn(self, off: Floats, log_batch: Floats, idle: Floats) -> None:
        x = np.stack((np.ones_like(off), log_batch, idle), axis=1)
        keep = float(np.exp(-len(off) / MEMORY))
        self._gram = keep * self._gram + x.T @ x
        self._moment = keep * self._moment + x.T @ np.clip(off, -LARGEST, LARGEST)
        fitted = np.linalg.solve(self._gram + RIDGE * np.diag((0.01, 0.1, 0.1)), self._moment)
        self.gain = float(np.clip(fitted[2], -LARGEST, LARGEST))

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "gain": self.gain,
            "gram": self._gram.tolist(),
            "moment": self._moment.tolist(),
            "names": list(self._names),
            "seen_s": self._seen_s,
            "last": self._last.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Sharing":
        """The inverse of `state_dict`."""
        names = tuple(state["names"])
        return cls(
            float(state["gain"]),
            np.array(state["gram"]),
            np.array(state["moment"]),
            names,
            float(state["seen_s"]),
            np.array(state["last"], dtype=np.float64).reshape(COUNTERS, len(names)),
        )
