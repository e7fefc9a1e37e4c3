"""Steps that end before everything they asked for has: counting, putting off, placing.

A trainer that takes the first complete groups asks for more than its batch needs
(`policies.contract.Oversampling`).  A policy then puts off what is unfinished once the batch is
full.  Groups are put off whole and only within the lag bound, the samples of a group that have
already ended counted: one that may not wait is finished in this step, and the step waits for it.
Without any lag (`max_lag` 0) that is all of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Bools, Ints, Objective, Observation
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._admission import fill, placements
from steersman.policies.placement._lag import may_go_on

MANY = 1_000_000
"""No bound."""
ALL_AT_ONCE: Mapping[str, float] = MappingProxyType(
    {
        "max_moves_per_tick": MANY,
        "max_moves_per_trajectory": MANY,
        "max_deferrals": MANY,
        "move_cooldown_s": 0.0,
    }
)
"""Bounds of the guard that a cut needs: it parks whatever is left, in one tick, whatever moved
lately, and what waits for its turn is parked anew in every step.  The lag bound is what ends it."""


@dataclass
class Batch:
    """How much of the present step's batch is complete.

    The trainer tells how many groups it still needs when the step begins: what is complete beyond a
    batch counts for the next, so that is at most a batch.
    """

    step: int = -1
    wanted: int = 0
    """Groups that the present step needs; 0: all."""
    size: int = 0
    """Groups of a whole batch: the most that a step needed."""
    ready: int = 0
    """Complete groups of this step."""
    unfinished: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Ids of the groups at the last look."""

    def follow(self, observation: Observation) -> bool:
        """Take in an observation; whether a new step begins with it."""
        trainer = observation.trainer
        new = trainer.step != self.step
        if new:
            self.step, self.ready = trainer.step, 0
        else:
            self.ready += len(newly_complete(self.unfinished, observation))
        self.unfinished = observation.groups.group_id
        barrier = trainer.objective is Objective.BARRIER
        self.wanted = trainer.groups_wanted if barrier else 0
        self.size = max(self.size, self.wanted)
        return new

    @property
    def full(self) -> bool:
        """The trainer has what it waits for."""
        return 0 < self.wanted <= self.ready

    def to_ask(self, groups_wanted: int, oversampling: float) -> int:
        """Open groups that make `oversampling` batches, with those that are complete already."""
        size = max(self.size, groups_wanted)
        return math.ceil((oversampling - 1) * size) + groups_wanted

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**vars(self), "unfinished": self.unfinished.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Batch":
        """The inverse of `state_dict`."""
        return cls(**{**state, "unfinished": np.array(state["unfinished"], dtype=np.int64)})


def newly_complete(unfinished: Ints, observation: Observation) -> Ints:
    """Ids of the groups that are complete since a look at which `unfinished` were not.

    A group that was in the table of unfinished groups and no longer is, is complete, and so is one
    that began and ended between two looks.
    """
    known = np.union1d(unfinished, observation.ended.group_id)
    return np.setdiff1d(known, observation.groups.group_id, assume_unique=True)


def frontier_first(observation: Observation) -> Ints:
    """Rows that wait: by the step of their group, its unfinished samples, its id."""
    rows, g = observation.queued, observation.groups
    group = observation.trajectories.group_row[rows]
    left = (g.size - g.ended)[group]
    return np.asarray(rows[np.lexsort((rows, group, left, g.step[group]))])


def may_wait(observation: Observation) -> Bools:
    """(n,) whether the lag bound lets the row's whole group go on in the next step."""
    group = observation.trajectories.group_row
    able = np.ones(len(observation.groups), dtype=np.bool_)
    able[group[~may_go_on(observation)]] = False
    return np.asarray(able[group])


def put_off(
    observation: Observation, rows: Bools, keep: bool, policy: str, reason: str
) -> list[Decision]:
    """Park those of the rows that wait or run.

    With `keep` they take their tokens along.  Without, what has written any is restarted, and its
    fresh sample is parked when it is seen to wait.
    """
    t = observation.trajectories
    running = rows & (t.phase == Phase.RUNNING)
    discard = running & (t.generated_tokens > 0) & (not keep)
    park = (running & ~discard) | (rows & (t.phase == Phase.QUEUED))
    return [
        Decision(i, action, policy, reason, row=row)
        for action, some in ((Action.DEFER, park), (Action.RESTART, discard))
        for i, row in _ids(observation, np.flatnonzero(some))
    ]


def end_step(observation: Observation, keep: bool, policy: str, reason: str) -> list[Decision]:
    """Put off whatever may wait; what may not is placed and runs to its end."""
    waits = may_wait(observation)
    queued = observation.queued
    stale = place(observation, queued[~waits[queued]], policy, "too old to be put off again")
    return put_off(observation, waits, keep, policy, reason) + stale


def place(
    observation: Observation, rows: Ints, policy: str, reason: str, backlog: int | None = None
) -> list[Decision]:
    """Each of the waiting rows, in this order, to the replica with the fewest in flight.

    Ties go by name.  With a backlog, a replica takes no more than it can run and that many; the
    rows for which there is no room stay at the controller.
    """
    slots = np.maximum(observation.replicas.max_num_seqs, 1)
    room = np.full(len(slots), len(rows))
    if backlog is not None:
        room = slots + backlog - observation.inflight()
    targets = fill(observation, room, len(rows))
    return placements(observation, rows, targets, policy, reason)


def _ids(observation: Observation, rows: Ints) -> list[tuple[int, int]]:
    ids = observation.trajectories.trajectory_id[rows].tolist()
    return list(zip(ids, rows.tolist(), strict=True))
