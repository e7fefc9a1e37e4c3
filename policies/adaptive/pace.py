"""Whether the replicas are as fast as forecast.

Between two observations an engine has spent `busy_s` on some iterations.  Where nothing was
prefilled or drafted, seconds per iteration are compared with the forecast for the batch that it
ran.  If the mean of |log(measured / forecast)| over the fleet stays above `WRONG`, the model is not
used: an estimator that works is off by a twentieth.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Observation
from steersman.policies.adaptive._counters import COUNTERS, LEAST_ITERATIONS, compared, reading

WRONG, RIGHT = 0.4, 0.25
"""Mean log error from which the model is doubted, and below which it is trusted again."""
KEEP = 0.9
"""Of the error, per tick with a measurement; the estimator itself needs some ticks to learn."""


@dataclass
class Pace:
    """Follows one run."""

    error: float = 0.0
    """Mean log error, with forgetting; 0 before data."""
    doubted: bool = False
    _names: tuple[str, ...] = ()
    _last: Floats = field(default_factory=lambda: np.zeros((COUNTERS, 0)))
    """(COUNTERS, r) the last reading."""

    def follow(self, observation: Observation, forecast: Forecast) -> bool:
        """Take in an observation and its forecast; whether the forecast may be used."""
        names, now = observation.replicas.names, reading(observation.replicas)
        if self._names != names:
            self._names, self._last = names, now
            return not self.doubted
        grown = now - self._last
        renewed = (grown[0] >= LEAST_ITERATIONS) | (grown[0] < 0)
        self._last = np.where(renewed, now, self._last)
        off = compared(observation, forecast, grown).log_off
        if len(off):
            error = float(min(np.abs(off).mean(), 2.0))
            self.error = KEEP * self.error + (1 - KEEP) * error
        limit = RIGHT if self.doubted else WRONG
        self.doubted = self.error > limit
        return not self.doubted

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "error": self.error,
            "doubted": self.doubted,
            "names": list(self._names),
            "last": self._last.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Pace":
        """The inverse of `state_dict`."""
        names, last = tuple(state["names"]), np.array(state["last"], dtype=np.float64)
        return cls(state["error"], state["doubted"], names, last.reshape(COUNTERS, len(names)))
