"""The forecast: what the estimators say about one observation, aligned with its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.observation import Floats, Observation

QUANTILES = (0.1, 0.5, 0.9)
"""Levels of the quantile columns."""
KNEE = 0.92
"""KV-cache usage from which an engine preempts and recomputes."""


@dataclass(frozen=True)
class LengthForecast:
    """How much longer each trajectory will write, given that it is not finished yet."""

    remaining_tokens: Floats
    """(n, 3) quantiles at `QUANTILES`; 0 for ended rows; never above what the cap leaves."""
    mean_remaining_tokens: Floats
    """(n,) expected remaining tokens."""
    remaining_turns: Floats
    """(n, 3) quantiles of the turns not finished, the present one counted; 0 for ended rows."""
    sibling_correlation: Floats
    """(g,) correlation, 0..1, of the log lengths of two unfinished members of the group, given what
    is known of it: near 0 once many siblings have told where the group lies."""

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
    """How long an iteration of each replica takes, and what else costs time there.

    tau(b, kv) = fixed_s + sequence_s * b + token_s * kv + knee_s * max(kv / capacity - KNEE, 0)
    for b running sequences whose contexts hold kv tokens.  With drafts it takes verify_s longer,
    and verify_token_s for each drafted token.
    """

    fixed_s: Floats
    """(r,) M: seconds of an iteration that do not depend on the batch."""
    per_sequence_s: Floats
    """(r,) c: seconds that one more running sequence of the replica's present mean context adds,
    the context's tokens counted.  Planners use T = M * Lmax + c * sum(L)."""
    sequence_s: Floats
    """(r,) the part of `per_sequence_s` that does not depend on the context."""
    token_s: Floats
    """(r,) seconds that each token of context adds to an iteration."""
    knee_s: Floats
    """(r,) seconds per unit of KV-cache usage above the knee (preemption, recomputation)."""
    kv_capacity_tokens: Floats
    """(r,) as observed; 0: unknown, the knee is ignored."""
    prefill_token_s: Floats
    """(r,) seconds per prompt token to prefill."""
    handover_s: Floats
    """(r,) seconds from leaving one replica to running on this one, without the prefill."""
    relative_error: Floats
    """(r,) recent mean of |predicted - measured| / measured; NaN before anything was measured."""
    samples: NDArray[np.int64]
    """(r,) iterations the figures rest on; 0: they are the prior."""
    verify_s: Floats
    """(r,) v0: seconds that an iteration takes longer for any draft in it (rejection sampling, the
    host's part of it); 0 before a draft was verified."""
    verify_token_s: Floats
    """(r,) v1: seconds that each drafted token adds to an iteration; `sequence_s` before that."""

    def iteration_s(self, batch: Floats, kv_tokens: Floats) -> Floats:
        """Seconds of an iteration of `batch` sequences that hold `kv_tokens`, no prefill in it.

        Both broadcast against (r,): the last axis is the replica.
        """
        known = self.kv_capacity_tokens > 0
        usage = np.where(known, kv_tokens / np.where(known, self.kv_capacity_tokens, 1.0), 0.0)
        decode = self.fixed_s + self.sequence_s * batch + self.token_s * kv_tokens
        return np.asarray(decode + self.knee_s * np.maximum(usage - KNEE, 0.0))


@dataclass(frozen=True)
class SuccessForecast:
    """How likely the samples of each group's prompt are to pass, and what the group is worth."""

    pass_probability: Floats
    """(g,) expected probability that a new sample passes."""
    pass_deviation: Floats
    """(g,) standard deviation of that probability: what is not known of the prompt."""
    degenerate_probability: Floats
    """(g,) before any outcome of this group: P(all `size` samples pass or all fail)."""
    informative_probability: Floats
    """(g,) given the outcomes so far: P(the group's rewards will not all be equal)."""
    value: Floats
    """(g,) worth of the finished group under the trainer's normaliser, 0..1: the probability of
    being informative (std), or the expected reward variance over its maximum 1/4 (none)."""


@dataclass(frozen=True)
class AcceptanceForecast:
    """How many drafted tokens each replica's model accepts."""

    acceptance: Floats
    """(r, k) probability that position i is accepted, given that all before it were."""
    samples: Floats
    """(r,) discounted drafts the figures rest on; 0: they are the prior."""


@dataclass(frozen=True)
class DriftForecast:
    """Whether what was learned still holds."""

    keep: Mapping[str, float]
    """By source ("length", "success"): share of the evidence worth keeping now; 1: all of it,
    between: doubt, the lowest value: an alarm."""
    alarms: Mapping[str, int]
    """By source: alarms so far."""


@dataclass(frozen=True)
class Forecast:
    """All the estimators' answers to one observation."""

    length: LengthForecast
    throughput: ThroughputForecast
    success: SuccessForecast
    acceptance: AcceptanceForecast
    drift: DriftForecast

    @classmethod
    def unknown(cls, observation: Observation) -> Self:
        """No forecast at all (zeros), for policies that need none."""
        n, r = len(observation.trajectories), len(observation.replicas)
        quantiles, nothing = np.zeros((n, len(QUANTILES))), np.zeros(r)
        group = np.zeros(len(observation.groups))
        return cls(
            LengthForecast(quantiles, np.zeros(n), quantiles, group),
            ThroughputForecast(
                fixed_s=nothing,
                per_sequence_s=nothing,
                sequence_s=nothing,
                token_s=nothing,
                knee_s=nothing,
                kv_capacity_tokens=nothing,
                prefill_token_s=nothing,
                handover_s=nothing,
                relative_error=nothing,
                samples=np.zeros(r, dtype=np.int64),
                verify_s=nothing,
                verify_token_s=nothing,
            ),
            SuccessForecast(*[group] * 5),
            AcceptanceForecast(np.zeros((r, 0)), nothing),
            DriftForecast({}, {}),
        )
