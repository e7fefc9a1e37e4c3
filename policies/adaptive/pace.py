"""Whether the replicas are as fast as forecast.

Between two observations an engine has spent `busy_s` on some iterations.  Where nothing was
prefilled, seconds per iteration are compared with the forecast for the batch that it ran.  If the
mean of |log(measured / forecast)| over the fleet stays above `WRONG`, the model is not used: an
estimator that works is off by a twentieth.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Observation

LEAST_ITERATIONS = 16
"""As in the estimator: a report between two iterations does no harm then."""
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
    _last: Floats = field(default_factory=lambda: np.zeros((4, 0)))
    """(4, r) iterations, busy seconds, sequences, prompt tokens."""

    def follow(self, observation: Observation, forecast: Forecast) -> bool:
        """Take in an observation and its forecast; whether the forecast may be used."""
        r = observation.replicas
        now = np.stack((r.iterations, r.busy_s, r.sequences_run, r.prefill_tokens)).astype(float)
        if self._names != r.names:
            self._names, self._last = r.names, now
            return not self.doubted
        n, seconds, sequences, prompt = now - self._last
        due = n >= LEAST_ITERATIONS
        self._last = np.where(due | (n < 0), now, self._last)
        usable = due & (seconds > 0) & (prompt <= 0) & r.alive & (forecast.throughput.samples > 0)
        if usable.any():
            batch = sequences / np.maximum(n, 1)
            kv = r.kv_cache_usage * r.kv_capacity_tokens
            expected = forecast.throughput.iteration_s(batch, kv) * np.maximum(n, 1)
            off = np.abs(np.log(seconds[usable] / np.maximum(expected[usable], 1e-9))).mean()
            self.error = KEEP * self.error + (1 - KEEP) * float(min(off, 2.0))
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
        return cls(state["error"], state["doubted"], names, last.reshape(4, len(names)))
