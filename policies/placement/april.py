"""APRIL: ask for more groups than a batch needs, stop when it is full, recycle the unfinished.

Source: arXiv 2509.18521, and slime, which it is built on (`--over-sampling-batch-size`,
`--partial-rollout`).  A step has `oversampling` times its batch open, groups of earlier steps
counted.  All that waits is placed at once, on the replica with the fewest in flight, the groups of
earlier steps first.  As soon as as many groups are complete as the batch needs, whatever else waits
or runs is put off with the tokens it has; the next step resumes it.

The rest of a resumed trajectory is written by newer weights.  slime masks the old tokens in the
loss if told to (`--mask-offpolicy-in-partial-rollout`); that is the trainer's part, and so is the
importance weight.  slime knows no bound on how old a recycled sample may become; here the lag bound
holds, and a group that has reached it is finished within its step, which waits for it.

Not offered: slime without `--partial-rollout`, which drops the unfinished groups, prompts
included.  Then the batches hold only what was quick, the slow prompts are never trained on, and no
weight repairs it, for what is never kept has probability 0.  (STOP would be no way out: it hands in
an answer cut off in the middle as if it were one.)  `sorted_rl` with `mode = "on_policy"` discards
tokens but keeps the prompts.

Steps become shorter by what the longest groups would have taken, and the batch's lengths lean to
the short side until the recycled ones come back.  Where the KV cache is the limit, the additional
requests are preempted (arXiv 2511.14617 criticises it; in simulation three times as often, which
took back most of the gain).

A trainer that needs all groups of a step (`groups_wanted` 0), and a stream, get the default rule:
fewest in flight.  Correctness class: corrected.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Decision
from steersman.policies.placement._cut import ALL_AT_ONCE, Batch, end_step, place

NAME = "april"


@dataclass
class April:
    """One option."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED
    GUARD: ClassVar[Mapping[str, float]] = {**ALL_AT_ONCE, "max_lag": 8}
    """slime has no lag bound; 8 versions is the most at which stale samples were found harmless
    (arXiv 2505.24298)."""
    TUNABLE: ClassVar[Mapping[str, Range]] = {
        # only downwards: replay sees the seconds that more of it saves, not what stale samples cost
        "oversampling": Range(1.0, 2.0),
    }

    oversampling: float = 2.0
    """Groups open over groups that the batch needs, 1 or more.  The ratio of slime's examples (64
    for 32) and of the comparison in arXiv 2511.14617."""

    _batch: Batch = field(default_factory=Batch, init=False)

    def __post_init__(self) -> None:
        if not (self.oversampling >= 1 and math.isfinite(self.oversampling)):
            raise InvalidInputError(f"oversampling is {self.oversampling}; valid: 1 or more")

    def groups_to_ask(self, groups_wanted: int) -> int:
        """So many batches, with what is complete already."""
        return self._batch.to_ask(groups_wanted, self.oversampling)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything until the batch is full, then put off the rest."""
        self._batch.follow(observation)
        if self._batch.full:
            return end_step(
                observation, keep=True, policy=NAME, reason="the batch is full; it goes on later"
            )
        return place(observation, observation.queued, NAME, "fewest in flight")

    def state_dict(self) -> dict[str, Any]:
        """How full the batch is."""
        return self._batch.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace how full the batch is."""
        self._batch = Batch.from_state(state)


PLUGIN: type[PlacementPolicy] = April
