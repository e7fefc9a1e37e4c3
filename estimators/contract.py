"""What every estimator promises.

An estimator learns from observations (their `ended` table, the replicas' counters) and answers for
a whole observation at once, as arrays.  It reads no clock and draws no random number, so that the
same observations give the same answers live and in replay.
"""

from typing import Any, Protocol

from steersman.estimators.forecast import LengthForecast, ThroughputForecast
from steersman.estimators.observation import Observation

State = dict[str, Any]
"""What an estimator has learned, as plain numbers, lists and dicts (JSON can hold it)."""


class Estimator(Protocol):
    """The part all estimators share."""

    def observe(self, observation: Observation) -> None:
        """Learn from one observation.  Each observation is shown once, in order."""

    def reset_on_drift(self, keep: float) -> None:
        """The workload changed: keep this share (0..1) of what was learned."""

    def state_dict(self) -> State:
        """Everything learned; `load_state_dict` of it gives an equal estimator."""

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""


class LengthEstimator(Estimator, Protocol):
    """Answers how long trajectories will become."""

    def forecast(self, observation: Observation) -> LengthForecast:
        """Remaining tokens of every row.  Without data it widens; it never fails."""


class ThroughputEstimator(Estimator, Protocol):
    """Answers how fast replicas are."""

    def forecast(self, observation: Observation) -> ThroughputForecast:
        """Iteration-time model of every replica.  Without data it answers its prior."""
