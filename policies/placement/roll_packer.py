"""RollPacker's tail batching: short rounds take what is done first, long rounds take what is left.

Source: arXiv 2509.21009.  A *short round* has `oversampling` times its batch of new groups open;
once the batch is full, the unfinished groups go to the long-prompt queue.  When a batch of groups
waits there, the next step is a *long round*: it asks for no new ones, runs those that have waited
longest, and waits for all of them.  At 1.25 that is one long round after four short ones.  So long
answers share a few steps among themselves, and the other steps do not wait for them.  All that may
run is placed at once, on the replica with the fewest in flight.

What a group in the queue had begun is thrown away, and a fresh sample is drawn in the long round,
as published.  With `keep_partials` it keeps its tokens and goes on under newer weights: then
nothing is wasted and nothing is biased within a prompt, but samples are up to five versions old.

Every prompt is trained on, but which round it is in depends on its lengths, so batches are
correlated with length: short rounds keep short groups, long rounds long ones.

Not here: the additional responses per prompt (the source oversamples those as well; a group's size
is the prompt policy's matter), tensor parallelism per round, and the streaming trainer.  A sample
that has ended cannot be taken back, so siblings of discarded ones stay.  A group that the lag bound
does not let wait is run in the present round, whatever that is.

A trainer that needs all groups of a step (`groups_wanted` 0), and a stream, get the default rule:
fewest in flight.  Correctness class: empirical.  The source counts only the changed order; but of
one prompt, a group that is short is kept and a long one is drawn anew once, which prefers short
answers (simulated, strong tail: 11 % fewer tokens per answer).  With `keep_partials` it is
corrected.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Decision
from steersman.policies.placement._cut import ALL_AT_ONCE, Batch, may_wait, place, put_off

NAME = "roll_packer"


@dataclass
class RollPacker:
    """Two options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL
    GUARD: ClassVar[Mapping[str, float]] = {**ALL_AT_ONCE, "max_restarts": 1, "max_lag": 5}
    """A group is cut at most once.  A quarter of a batch joins the queue per short round, so it
    runs in the fifth step, or the sixth where rounding makes the quarter less."""
    TUNABLE: ClassVar[Mapping[str, Range]] = {
        # only downwards: replay sees the seconds that more of it saves, not what it does to batches
        "oversampling": Range(1.0, 1.25),
    }

    oversampling: float = 1.25
    """New groups of a short round over those that the batch needs, 1 or more: the source's."""
    keep_partials: bool = False
    """Whether groups in the queue keep the tokens they have."""

    _batch: Batch = field(default_factory=Batch, init=False)
    _long: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)
    """Ids of the groups in the long-prompt queue, ascending."""

    def __post_init__(self) -> None:
        if not (self.oversampling >= 1 and math.isfinite(self.oversampling)):
            raise InvalidInputError(f"oversampling is {self.oversampling}; valid: 1 or more")

    def groups_to_ask(self, groups_wanted: int) -> int:
        """Those in the queue, and in a short round so many times as many new ones."""
        waiting = len(self._long)
        if waiting >= max(self._batch.size, groups_wanted):
            return waiting
        return waiting + self._batch.to_ask(groups_wanted, self.oversampling)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Hold the queue back and place the others; when the batch is full, queue those as well."""
        self._follow(observation)
        batch, queued = self._batch, observation.queued
        if not batch.wanted:
            return place(observation, queued, NAME, "fewest in flight")
        group_id = observation.groups.group_id
        if batch.full:
            self._long = np.union1d(self._long, group_id)
        in_queue = np.isin(group_id, self._long)[observation.trajectories.group_row]
        held = in_queue & may_wait(observation)
        reason = "its group is for a long round"
        return [
            *put_off(observation, held, self.keep_partials, NAME, reason),
            *place(observation, queued[~held[queued]], NAME, "fewest in flight"),
        ]

    def _follow(self, observation: Observation) -> None:
        if not self._batch.follow(observation):
            return
        group_id = observation.groups.group_id
        self._long = np.intersect1d(self._long, group_id)
        new = len(group_id) - len(self._long)
        # where the new ones are not enough for a batch, the queue is full: a long round
        lacking = max(self._batch.wanted - new, 0)
        self._long = self._long[lacking:]

    def state_dict(self) -> dict[str, Any]:
        """How full the batch is, and which groups are in the queue."""
        return {"batch": self._batch.state_dict(), "long": self._long.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what it knows of the step and the queue."""
        self._batch = Batch.from_state(state["batch"])
        self._long = np.array(state["long"], dtype=np.int64)


PLUGIN: type[PlacementPolicy] = RollPacker
