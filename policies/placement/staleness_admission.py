"""Staleness-bounded admission: AReaL's gate, which lets a group begin only if it will not be stale.

Source: AReaL, arXiv 2505.24298 and its `StalenessManager`.  In a stream, groups begin while

    min(max_concurrent - running, (eta + version + 1) * batch - (accepted + running)) > 0

with eta the largest lag the trainer allows, `batch` the groups of its batch, `running` the groups
that have begun and are not complete, and `accepted` those complete since version 0.  If batches are
made up in the order in which groups began, none is then trained on more than eta versions late.
They are made up in the order of completion, so the bound is one of the aggregate: a very long
trajectory may exceed it.  Groups begin in the order of their ids, whole, each trajectory on the
replica with the fewest in flight.  What has begun is placed whenever it waits.

*Filtered groups.*  A complete group that the trainer does not train on never makes up a batch, so
the version does not rise for it.  Counted as accepted, it would take capacity for ever, until
nothing may begin: a deadlock.  Where it is told how many were filtered (`groups_filtered`), those
are taken back out of `accepted`.  Where it is not, with `filtered = "degenerate"` a group is taken
out as soon as all its rewards are known and equal.  That must be what the trainer filters by;
`"none"` is for one that filters nothing.

*Extended groups.*  A complete group that gets more samples runs again, and is accepted once they
have ended.

*Checkpoints.*  `accepted` is part of the state.  Without a state, a run that begins at version v
takes it for v * batch, as AReaL does when it recovers: with 0, the gate would let eta + v + 1
batches begin at once.

The bound comes from the observation (`max_lag`), the batch too (`groups_wanted`).  A trainer that
tells no batch, and one that waits for a whole step, get the default rule: a gate could only hold
such a step up.  Correctness class: exact; it changes when samples begin, not what they are.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import NO_VERSION, Bools, Ints, Objective, Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Decision
from steersman.policies.placement._cut import newly_complete, place

NAME = "staleness_admission"
FILTERS = ("none", "degenerate")
UNKNOWN = -1
MOST_AWAITED = 65_536
"""Groups of which some rewards are known, beyond which the longest unheard of are given up: a cut
answer may never be rewarded."""


@dataclass
class StalenessAdmission:
    """Two options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    max_concurrent: int = 0
    """Groups that run at once, at most; 0: as many as the trainer keeps open.  AReaL's own default
    is one batch."""
    filtered: Literal["none", "degenerate"] = "none"
    """Complete groups that the trainer does not train on."""

    _accepted: int = field(default=UNKNOWN, init=False)
    _unfinished: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)
    """Ids of the groups at the last look."""
    _rewards: dict[int, tuple[int, float, float]] = field(default_factory=dict, init=False)
    """By group, until all are known: how many are, the lowest, the highest."""
    _told: int = field(default=0, init=False)
    """Filtered groups that were told so far."""
    _newest: int = field(default=UNKNOWN, init=False)
    """Highest id of a group seen.  No part of the state: another session begins at 0 again."""

    def __post_init__(self) -> None:
        if self.max_concurrent < 0:
            raise InvalidInputError(f"max_concurrent is {self.max_concurrent}; valid: 0 or more")
        if self.filtered not in FILTERS:
            raise InvalidInputError(f"filtered is {self.filtered!r}; valid: {', '.join(FILTERS)}")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Let as many groups begin as there is capacity for, and place all that has begun."""
        self._count(observation)
        trainer, queued = observation.trainer, observation.queued
        if trainer.objective is not Objective.STREAM or not trainer.groups_wanted:
            return place(observation, queued, NAME, "fewest in flight")
        begun = _begun(observation)
        capacity = self.capacity(observation, int(begun.sum()))
        begun[np.flatnonzero(~begun)[: max(capacity, 0)]] = True
        rows = queued[begun[observation.trajectories.group_row[queued]]]
        return place(observation, rows, NAME, "within the staleness budget")

    def capacity(self, observation: Observation, running: int) -> int:
        """Groups that may begin now; negative: too many have."""
        trainer = observation.trainer
        budget = (trainer.max_lag + trainer.weight_version + 1) * trainer.groups_wanted
        capacity = budget - (self._accepted + running)
        return min(capacity, self.max_concurrent - running) if self.max_concurrent else capacity

    def _count(self, observation: Observation) -> None:
        """Take in what is complete, and what of it is filtered."""
        trainer = observation.trainer
        complete = len(newly_complete(self._unfinished, observation))
        complete -= self._extended(observation)
        self._unfinished = observation.groups.group_id
        if self._accepted == UNKNOWN:
            self._accepted = trainer.weight_version * trainer.groups_wanted
        else:
            self._accepted += complete
        if trainer.groups_filtered is not None:
            fresh = trainer.groups_filtered < self._told  # another session counts from 0
            self._accepted -= trainer.groups_filtered - (0 if fresh else self._told)
            self._told = trainer.groups_filtered
        elif self.filtered == "degenerate":
            self._accepted -= self._newly_degenerate(observation)

    def _extended(self, observation: Observation) -> int:
        """Groups that were complete and are not any more."""
        ids = observation.groups.group_id
        back = (ids <= self._newest) & ~np.isin(ids, self._unfinished)
        self._newest = max(self._newest, int(ids.max(initial=UNKNOWN)))
        return int(back.sum())

    def _newly_degenerate(self, observation: Observation) -> int:
        """Groups whose last reward has just become known, all being equal."""
        table, found = observation.rewarded, 0
        rows = zip(
            table.group_id.tolist(), table.group_size.tolist(), table.reward.tolist(), strict=True
        )
        for group, size, reward in rows:
            count, low, high = self._rewards.pop(group, (0, reward, reward))
            low, high = min(low, reward), max(high, reward)
            if count + 1 < size:
                self._rewards[group] = (count + 1, low, high)
            else:
                found += low == high
        while len(self._rewards) > MOST_AWAITED:
            del self._rewards[next(iter(self._rewards))]
        return found

    def state_dict(self) -> dict[str, Any]:
        """What was accepted, and what is known of rewards."""
        return {
            "accepted": self._accepted,
            "unfinished": self._unfinished.tolist(),
            "rewards": [[group, *known] for group, known in self._rewards.items()],
            "told": self._told,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was counted."""
        self._accepted = int(state["accepted"])
        self._unfinished = np.array(state["unfinished"], dtype=np.int64)
        self._rewards = {g: (count, low, high) for g, count, low, high in state["rewards"]}
        self._told, self._newest = int(state["told"]), UNKNOWN


def _begun(observation: Observation) -> Bools:
    """(g,) whether any of the group's trajectories was ever placed."""
    t = observation.trajectories
    begun = np.zeros(len(observation.groups), dtype=np.bool_)
    fresh = (t.phase == Phase.QUEUED) & (t.oldest_weight_version == NO_VERSION)
    begun[t.group_row[~fresh | (t.restarts > 0)]] = True
    return begun


PLUGIN: type[PlacementPolicy] = StalenessAdmission
