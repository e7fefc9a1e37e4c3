"""RhymeRL's HistoPipe (arXiv 2508.18588): prompts ranked by their last lengths, one pool a rank.

At the beginning of a step the prompts seen before are sorted by the mean length of their samples at
the last visit and cut into `ranking_groups` ranges of equally many.  Each range gets replicas of
its own, the long ones more: the integer programme "the range that ends last shall end soonest" in
the affine model T = M * Lmax + c * sum(L) / replicas, on the last visit's lengths, solved exactly.
The ranges are laid onto the replicas, in the order of their names, ascending in one step and
descending in the next, so that a replica that had short ones gets long ones.  Within a pool, the
fewest in flight.

A trajectory that outgrows every sample that its range had at the last visit moves one range up,
keeping its tokens, which are prefilled again.  A prompt never seen goes where the fewest are in
flight in all the fleet; in its first epoch a run is therefore the default rule, and it rests on
prompts that come again and on lengths that stay (the paper: 2-4 % change rank per epoch).

What the paper leaves open, or was not to be found: the number of ranges, and when a trajectory has
outgrown its own.  Not here: drafts from the last epoch's answers (HistoSpec), and steps that
overlap.  Without those the alternation balances nothing in a barrier step of equal replicas.  The
model takes replicas as equally fast and the KV cache as large enough.  Correctness class: exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._pools import FleetSpeed, by_name, fill, integer_split
from steersman.policies.placement._step_book import (
    UNASSIGNED,
    UNKNOWN,
    Groups,
    PromptMemory,
    StepBook,
    find,
)

NAME = "rhyme_rl"


@dataclass
class RhymeRL:
    """The defaults were tried in simulation on 8 replicas."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    ranking_groups: int = 4
    """Ranges of prompts, at most one per two replicas, or whole replicas would be too coarse a
    measure; 1: the default rule."""
    outgrown: float = 1.0
    """Multiple of its range's longest last sample beyond which a trajectory moves up; large: never.
    """
    max_moves: int = 2
    """Trajectories that move up per tick; 0: none."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "ranking_groups": Range(1, 16, integer=True),
        "outgrown": Range(0.5, 4.0, log=True),
        "max_moves": Range(0, 8, integer=True),
    }

    _book: StepBook = field(default_factory=StepBook, init=False)
    _mean: PromptMemory = field(default_factory=PromptMemory, init=False)
    _longest: PromptMemory = field(default_factory=PromptMemory, init=False)
    _descending: bool = field(default=False, init=False)
    _ranges: "_Ranges | None" = field(default=None, init=False)
    """Of the present step; None: not ranked."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits, move what has outgrown its range."""
        replicas = by_name(observation)
        closed = self._book.follow(observation)
        if closed is not None:
            self._remember(closed)
            self._ranges, self._descending = None, not self._descending
        if not len(replicas):
            return []
        self._rank(observation, forecast, replicas)
        decisions = self._place(observation, replicas)
        return decisions + self._move_up(observation)

    def _remember(self, closed: Groups) -> None:
        self._mean.put(closed.prompt_key, closed.tokens / closed.ended)
        self._longest.put(closed.prompt_key, closed.longest.astype(np.float64))

    def _rank(self, observation: Observation, forecast: Forecast, replicas: Ints) -> None:
        """Give every group that is new its range; the first of a step make the ranges."""
        g = self._book.groups
        fresh = np.flatnonzero(g.pool == UNASSIGNED)
        g.expected[fresh] = self._mean.get(g.prompt_key[fresh])
        known = fresh[g.expected[fresh] > UNKNOWN]
        if not len(known):
            return
        if self._ranges is None:
            self._ranges = self._make_ranges(observation, forecast, replicas, known)
        g.pool[known] = np.searchsorted(self._ranges.cuts, g.expected[known], side="right")

    def _make_ranges(
        self, observation: Observation, forecast: Forecast, replicas: Ints, known: Ints
    ) -> "_Ranges":
        g = self._book.groups
        mean, keys = g.expected[known], g.prompt_key[known]
        count = max(min(self.ranking_groups, len(replicas) // 2, len(np.unique(mean))), 1)
        cuts = np.unique(np.quantile(mean, np.arange(1, count) / count, method="higher"))
        its = np.searchsorted(cuts, mean, side="right")
        longest = np.zeros(len(cuts) + 1)
        np.maximum.at(longest, its, self._longest.get(keys))
        group_row = find(observation.groups.group_id, g.group_id[known])
        tokens = mean * np.where(group_row >= 0, observation.groups.size[group_row], 1)
        work, context = np.zeros(len(longest)), np.zeros(len(longest))
        np.add.at(work, its, tokens)
        np.add.at(context, its, tokens * mean / 2)
        speed = FleetSpeed.of(observation, forecast)
        workers = integer_split(speed, longest, work, context, len(replicas))
        order = replicas[::-1] if self._descending else replicas
        names = [observation.replicas.names[row] for row in order]
        pool_of = dict(
            zip(names, np.repeat(np.arange(len(workers)), workers).tolist(), strict=True)
        )
        return _Ranges(cuts, longest, pool_of)

    def _place(self, observation: Observation, replicas: Ints) -> list[Decision]:
        queued = observation.queued
        if not len(queued):
            return []
        g = self._book.groups
        at = find(g.group_id, observation.groups.group_id)
        pool = g.pool[at[observation.trajectories.group_row[queued]]]
        decisions: list[Decision] = []
        for number in np.unique(pool)[::-1].tolist():
            its, reason = replicas, "no earlier visit; fewest in flight"
            if number != UNASSIGNED and self._ranges is not None:
                reason = f"range {number + 1} of {len(self._ranges.longest)} by its last lengths"
                own = self._ranges.pool_rows(observation, number)
                its = own if len(own) else replicas
            decisions += fill(observation, queued[pool == number], its, NAME, reason)
        return decisions

    def _move_up(self, observation: Observation) -> list[Decision]:
        """Trajectories that have written more than their replica's range had, the longest first."""
        if self._ranges is None or self.max_moves < 1:
            return []
        t, names = observation.trajectories, observation.replicas.names
        on = np.array([self._ranges.pool_of.get(name, UNASSIGNED) for name in names])
        running = observation.running
        limit = np.append(self._ranges.longest, np.inf) * self.outgrown
        limit[len(limit) - 2] = np.inf  # nothing is above the last range
        over = running[t.generated_tokens[running] > limit[on[t.replica_row[running]]]]
        over = over[np.lexsort((over, -t.generated_tokens[over]))][: self.max_moves]
        inflight, decisions = observation.inflight(), list[Decision]()
        for row in over.tolist():
            up = int(on[t.replica_row[row]]) + 1
            targets = self._ranges.pool_rows(observation, up)
            if not len(targets):
                continue
            target = int(targets[np.argmin(inflight[targets])])
            inflight[target] += 1
            why = f"longer than range {up} was at its last visit"
            trajectory_id, name = int(t.trajectory_id[row]), names[target]
            decisions.append(Decision(trajectory_id, Action.MIGRATE, NAME, why, name, row=row))
        return decisions

    def state_dict(self) -> dict[str, Any]:
        """Lengths at the last visits, the ranges and the present step."""
        return {
            "mean": self._mean.state_dict(),
            "longest": self._longest.state_dict(),
            "descending": self._descending,
            "ranges": None if self._ranges is None else self._ranges.state_dict(),
            "book": self._book.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all of it."""
        self._mean = PromptMemory.from_state(state["mean"])
        self._longest = PromptMemory.from_state(state["longest"])
        self._descending = bool(state["descending"])
        ranges = state["ranges"]
        self._ranges = None if ranges is None else _Ranges.from_state(ranges)
        self._book = StepBook.from_state(state["book"])


@dataclass
class _Ranges:
    """The ranges of one step."""

    cuts: Floats
    """(k - 1,) mean lengths between them, ascending."""
    longest: Floats
    """(k,) longest sample of each range at the last visit."""
    pool_of: dict[str, int]
    """Range of each replica, by name."""

    def pool_rows(self, observation: Observation, number: int) -> Ints:
        """Rows of the living replicas of a range, by name."""
        rows = [row for row in by_name(observation) if self._is(observation, row, number)]
        return np.array(rows, dtype=np.int64)

    def _is(self, observation: Observation, row: int, number: int) -> bool:
        return self.pool_of.get(observation.replicas.names[row], UNASSIGNED) == number

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "cuts": self.cuts.tolist(),
            "longest": self.longest.tolist(),
            "pool_of": self.pool_of,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "_Ranges":
        """The inverse of `state_dict`."""
        return cls(np.array(state["cuts"]), np.array(state["longest"]), dict(state["pool_of"]))


PLUGIN: type[PlacementPolicy] = RhymeRL
