"""Partial rollout: a trajectory writes so many tokens per iteration, and goes on in the next.

Source: Kimi k1.5, arXiv 2501.12599.  In each iteration a trajectory may write a fixed budget of
output tokens; what is then unfinished is saved and goes on in the next iteration, so that no long
answer holds up a step.  Only the present segment is written by the present weights; earlier ones
may be left out of the loss, which is the trainer's part.  All that waits is placed at once, on the
replica with the fewest in flight, saved ones first (they have the smaller ids).

The budget is not told in the source; here it is a share of the token cap, so that a trajectory
spans at most 1 / share iterations.  Nor is it told what happens when an iteration leaves fewer
groups complete than the trainer needs.  Here a group is saved only while enough others are left for
the batch; the rest write on beyond the budget.  The trainer is asked for `oversampling` times the
batch, which is how many groups can be saved.  Unlike `april`, it does not cut when the batch is
full: what is within its budget writes on, and what is complete beyond the batch counts for the
next.  The overrun is what is written in one tick.

Where the KV cache is the limit, the additional trajectories are preempted, and it can be slower
than waiting for all.  The source's end of loops (repetition detection) is a stopping policy's
matter.

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
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Bools, Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Decision
from steersman.policies.placement._cut import ALL_AT_ONCE, Batch, may_wait, place, put_off

NAME = "partial_rollout"


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass
class PartialRollout:
    """Two options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED
    GUARD: ClassVar[Mapping[str, float]] = {**ALL_AT_ONCE, "max_lag": 3}
    """A trajectory of the token cap spans four iterations of a quarter each."""
    TUNABLE: ClassVar[Mapping[str, Range]] = {
        # only towards fresher samples: replay sees the seconds saved, not what stale ones cost
        "budget_share": Range(0.25, 1.0),
        "oversampling": Range(1.0, 2.0),
    }

    budget_share: float = 0.25
    """Output tokens per iteration over a trajectory's token cap, in (0, 1].  The source leaves it
    open; with less than a quarter, `max_lag` must rise."""
    oversampling: float = 2.0
    """Groups open over groups that the batch needs, 1 or more; 1: nothing can be saved.  The source
    leaves it open."""

    _batch: Batch = field(default_factory=Batch, init=False)
    _known: Ints = field(default_factory=_no_ints, init=False)
    """Ids of the trajectories that were there when the step began."""
    _had: Ints = field(default_factory=_no_ints, init=False)
    """Their tokens then."""

    def __post_init__(self) -> None:
        if not 0 < self.budget_share <= 1:
            raise InvalidInputError(f"budget_share is {self.budget_share}; valid: above 0, up to 1")
        if not (self.oversampling >= 1 and math.isfinite(self.oversampling)):
            raise InvalidInputError(f"oversampling is {self.oversampling}; valid: 1 or more")

    def groups_to_ask(self, groups_wanted: int) -> int:
        """So many batches, with what is complete already."""
        return self._batch.to_ask(groups_wanted, self.oversampling)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything; save what has used up its budget."""
        t = observation.trajectories
        if self._batch.follow(observation):
            self._known, self._had = t.trajectory_id, t.generated_tokens
        placed = place(observation, observation.queued, NAME, "fewest in flight")
        if not self._batch.wanted:
            return placed
        written = t.generated_tokens - self._had_of(t.trajectory_id)
        over = (t.phase == Phase.RUNNING) & (written >= self.budget_share * t.max_new_tokens)
        rows = over & may_wait(observation) & self._can_be_spared(observation, over, written)
        return placed + put_off(observation, rows, True, NAME, "its budget of tokens is used up")

    def _can_be_spared(self, observation: Observation, over: Bools, written: Ints) -> Bools:
        """(n,) whether the batch can be filled without the row's group; longest written first."""
        t, batch, count = observation.trajectories, self._batch, len(observation.groups)
        saved = np.zeros(count, dtype=np.bool_)
        saved[t.group_row[t.phase == Phase.PARKED]] = True
        spare = batch.ready + int((~saved).sum()) - batch.wanted
        longest = np.zeros(count, dtype=np.int64)
        np.maximum.at(longest, t.group_row[over], written[over])
        wish = np.flatnonzero((longest > 0) & ~saved)
        saved[wish[np.lexsort((wish, -longest[wish]))][: max(spare, 0)]] = True
        return np.asarray(saved[t.group_row])

    def _had_of(self, ids: Ints) -> Ints:
        """(n,) tokens when the step began; 0: it was not there."""
        if not len(self._known):
            return np.zeros(len(ids), dtype=np.int64)
        at = np.minimum(np.searchsorted(self._known, ids), len(self._known) - 1)
        return np.asarray(np.where(self._known[at] == ids, self._had[at], 0))

    def state_dict(self) -> dict[str, Any]:
        """How full the batch is, and what everyone had when the step began."""
        return {
            "batch": self._batch.state_dict(),
            "known": self._known.tolist(),
            "had": self._had.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what it knows of the step."""
        self._batch = Batch.from_state(state["batch"])
        self._known = np.array(state["known"], dtype=np.int64)
        self._had = np.array(state["had"], dtype=np.int64)


PLUGIN: type[PlacementPolicy] = PartialRollout
