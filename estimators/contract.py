"""What every estimator promises.

An estimator learns from observations (what ended, what was rewarded, the replicas' counters) and
answers for a whole observation at once, as arrays.  It reads no clock and draws no random number,
so that the same observations give the same answers live and in replay.  Where it has no data it
widens: it answers its prior, with the prior's uncertainty.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from steersman.estimators.forecast import (
    AcceptanceForecast,
    DriftForecast,
    LengthForecast,
    SuccessForecast,
    ThroughputForecast,
)
from steersman.estimators.observation import Floats, Observation

State = dict[str, Any]
"""What an estimator has learned, as plain numbers, lists and dicts (JSON can hold it)."""


class Estimator(Protocol):
    """The part all estimators share."""

    def observe(self, observation: Observation) -> None:
        """Learn from one observation.  Each observation is shown once, in order."""

    def reset_on_drift(self, keep: float) -> None:
        """The workload changed: keep this share (0..1) of the evidence, doubt grows accordingly."""

    def health(self) -> Mapping[str, float]:
        """How good its own past answers were, by metric name (`q90_coverage`, `brier`); NaN where
        there was nothing to measure yet."""

    def state_dict(self) -> State:
        """Everything learned; `load_state_dict` of it gives an equal estimator."""

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""


class _Surprised(Estimator, Protocol):
    """An estimator whose surprises tell of drift."""

    def surprises(self) -> Floats:
        """(m,) standardised innovations of the groups that the last `observe` completed: mean 0 and
        deviation about 1 while what was learned holds."""


class LengthEstimator(_Surprised, Protocol):
    """Answers how long trajectories will become."""

    def forecast(self, observation: Observation) -> LengthForecast:
        """Remaining tokens and turns of every row.  Without data it widens; it never fails."""


class SuccessEstimator(_Surprised, Protocol):
    """Answers how likely prompts are to be solved."""

    def forecast(self, observation: Observation) -> SuccessForecast:
        """Pass probability and worth of every group."""


class ThroughputEstimator(Estimator, Protocol):
    """Answers how fast replicas are."""

    def forecast(self, observation: Observation) -> ThroughputForecast:
        """Iteration-time model of every replica.  Without data it answers its prior."""


class AcceptanceEstimator(Estimator, Protocol):
    """Answers how many drafted tokens are accepted."""

    def forecast(self, observation: Observation) -> AcceptanceForecast:
        """Acceptance by position of every replica."""


class DriftEstimator(Estimator, Protocol):
    """Answers whether the workload has changed."""

    def feed(self, source: str, surprises: Floats) -> None:
        """(m,) standardised innovations of one source, in order.  After `observe`."""

    def forecast(self, observation: Observation) -> DriftForecast:
        """What the surprises since the last forecast say of each source."""
