"""The forecast: what the estimators say about one observation, aligned with its rows."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.observation import Floats, Observation

QUANTILES = (0.1, 0.5, 0.9)
"""Levels of `LengthForecast.remaining_tokens`' columns."""


@dataclass(frozen=True)
class LengthForecast:
    """How much longer each trajectory will write, given that it is not finished yet."""

    remaining_tokens: Floats
    """(n, 3) quantiles at `QUANTILES`; 0 for ended rows; never above what the cap leaves."""
    mean_remaining_tokens: Floats
    """(n,) expected remaining tokens."""

    @property
    def median(self) -> Floats:
        """(n,) column 0.5."""
        return self.remaining_tokens[:, 1]

    @property
    def upper(self) -> Floats:
        """(n,) column 0.9."""
        return self.remaining_tokens[:, 2]


@dataclass(frozen=True)
class ThroughputForecast:
    """Iteration time of each replica: tau(b) = fixed_s + per_sequence_s * b for b running."""

    fixed_s: Floats
    """(r,) M: seconds of an iteration that do not depend on the batch."""
    per_sequence_s: Floats
    """(r,) c: seconds that each running sequence adds."""
    prefill_token_s: Floats
    """(r,) seconds per prompt token to prefill."""
    samples: NDArray[np.int64]
    """(r,) iterations the figures rest on; 0: they are the prior."""


@dataclass(frozen=True)
class Forecast:
    """All the estimators' answers to one observation."""

    length: LengthForecast
    throughput: ThroughputForecast

    @classmethod
    def unknown(cls, observation: Observation) -> Self:
        """No forecast at all (zeros), for policies that need none."""
        rows, replicas = len(observation.trajectories), len(observation.replicas)
        nothing = np.zeros(replicas)
        return cls(
            LengthForecast(np.zeros((rows, len(QUANTILES))), np.zeros(rows)),
            ThroughputForecast(nothing, nothing, nothing, np.zeros(replicas, dtype=np.int64)),
        )
