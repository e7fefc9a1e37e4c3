"""Seer: a probe per group tells how long its siblings will be; the longest groups go first.

Seer (arXiv 2511.14617), without its grouped speculative decoding (drafts from siblings need a draft
server and a draft length per request, which no engine here has).  Correctness class: exact.

*Context-aware scheduling.*  Siblings are alike in length.  One trajectory of each group is its
probe and goes before everything else, among probes the one with the fewest tokens written first.  A
group's estimate is the length of its longest finished sibling; unknown: the token cap.  All others
go longest estimate first.  Every `starvation_every`-th of them is instead of the group that had the
smallest share of its trajectories served, so that short groups do not wait for ever.

*Admission.*  The order matters only while things wait here, not in an engine: a replica takes what
its batch has a slot for and, where the KV capacity is known, whose context and next chunk fit
besides those of everyone there.  What fits nowhere holds up what comes after it.

*Divided rollout.*  A trajectory is placed again when it has written a chunk.  Rule, for each
placement: to the replica with the longest prefix of it (its own last one; else where siblings are,
for the prompt) while the replicas' requests in flight differ by at most `spread`, else to the one
with the fewest.  A prefix of no more than `prefix_tokens` does not count: the paper computes so
little again rather than fetch it.  A second placement is a migration, made only beyond the `spread`
or away from a replica whose KV cache cannot hold everyone's next chunk, and only to one with fewer
in flight.

Not as in the paper: there a chunk's end gives the slot back and the trajectory queues anew; here it
keeps running unless it moves.  There the KV cache lives in a pool that all replicas read; here a
move computes it again, so that many small chunks cost more than they bring.

It is wrong where siblings' lengths differ much: then a probe tells little.  It brings little where
the slots hold a good part of the step at once: what is long and did not start among the first then
waits for short probes to end, and that delay is a large part of its length.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import NO_ROW, Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Action, Decision, place
from steersman.policies.placement._homes import Homes
from steersman.policies.placement._slots import Slots, Wishes

NAME = "seer"
REASONS = ("its group's probe", "its group's estimate is the longest", "its group is under-served")
PROBE, LONGEST, NEGLECTED = range(3)


@dataclass
class Seer:
    """The defaults are the paper's where it gives a figure."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    chunk_tokens: int = 8192
    """Tokens after which a trajectory is placed again, and for which KV cache is set aside, at most
    (paper)."""
    chunks: int = 8
    """Chunks that a token cap has at least (paper: 40-98K in chunks of 8K), so that shorter answers
    are divided as well."""
    spread: int = 32
    """Difference between the most and the fewest in flight up to which prefixes decide (paper)."""
    prefix_tokens: int = 512
    """Longest prefix that is not worth keeping to a replica (paper: not worth fetching)."""
    starvation_every: int = 32
    """One placement in so many serves the most neglected group; the paper says "occasionally"."""
    backlog: int = 0
    """Trajectories in a replica's own queue.  The paper keeps all of them outside; 1 saves the
    fraction of a second in which a slot waits for the next decision."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "chunks": Range(1, 64, log=True, integer=True),
        "spread": Range(1, 128, integer=True),
        "starvation_every": Range(2, 512, log=True, integer=True),
        "backlog": Range(0, 4, integer=True),
    }
    GUARD: ClassVar[Mapping[str, float]] = {"max_moves_per_trajectory": 16}
    """A move per chunk of an answer of 128K tokens."""

    _homes: Homes = field(default_factory=Homes, init=False)
    _chunks: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)
    """Chunks for which each trajectory of the last observation was placed."""
    _served: int = field(default=0, init=False)
    """Placements so far that were no probe's."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place what waits as far as there is room; then move what has written its chunk."""
        t = observation.trajectories
        chunk = np.clip(t.max_new_tokens // self.chunks, 1, self.chunk_tokens)
        written = t.generated_tokens // chunk
        due = self._due(observation, written)
        homes = self._homes.update(observation)
        chunk_end = np.minimum((written + 1) * chunk, t.max_new_tokens)
        ahead = t.prompt_tokens + chunk_end
        slots = Slots.of(observation, ahead, self.backlog)
        decisions = self._place(observation, slots, ahead, homes)
        return decisions + self._move(observation, slots, ahead, due)

    def _due(self, observation: Observation, now: Ints) -> Ints:
        """Rows that run and have written a chunk since they were last placed."""
        ids, known = observation.trajectories.trajectory_id, self._homes.trajectory_id
        before = now
        if len(known):
            at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
            before = np.where(known[at] == ids, self._chunks[at], now)
        self._chunks = now
        running = observation.running
        return running[now[running] > before[running]]

    def _place(
        self, observation: Observation, slots: "Slots", ahead: Ints, homes: Ints
    ) -> list[Decision]:
        """`ahead` is (n,) the context of each at the end of its chunk."""
        t, alive = observation.trajectories, observation.replicas.alive
        known = homes >= 0
        long = t.prompt_tokens + t.generated_tokens > self.prefix_tokens
        at_home = known & long & (t.generated_tokens > 0)
        at_home[at_home] = alive[homes[at_home]]
        shares = np.zeros((len(observation.groups), len(observation.replicas)), dtype=np.bool_)
        long_prompt = t.prompt_tokens > self.prefix_tokens
        known &= long_prompt
        shares[t.group_row[known], homes[known]] = True
        order = list(self._order(observation, slots.free))
        rows = np.array([row for row, _ in order], dtype=np.int64)
        home = np.where(at_home, homes, NO_ROW)
        wishes = Wishes(ahead[rows], t.group_row[rows], home[rows], shares, long_prompt[rows])
        targets = slots.fill(wishes, self.spread)
        placed = targets >= 0
        homes[rows[placed]] = targets[placed]
        chosen = list(zip(order, targets[placed].tolist(), strict=False))
        self._served += sum(why != PROBE for (_, why), _ in chosen)
        return [place(observation, row, to, NAME, REASONS[why]) for (row, why), to in chosen]

    def _order(self, observation: Observation, count: int) -> Iterator[tuple[int, int]]:
        """The first `count` queued rows to place, and why."""
        if not count:
            return
        t, queued, served = observation.trajectories, observation.queued, self._served
        probes, others = _probes(observation)
        yield from ((row, PROBE) for row in probes[:count].tolist())
        group = t.group_row[others]
        longest = others[np.lexsort((others, -_estimates(observation)[group]))]
        waiting = np.bincount(t.group_row[queued], minlength=len(observation.groups))
        share = 1 - waiting / np.maximum(observation.groups.size, 1)
        neglected = iter(others[np.lexsort((others, share[group]))].tolist())
        done = set[int]()
        for row in longest[: max(count - len(probes), 0)].tolist():
            if row in done:
                continue
            if served % self.starvation_every == self.starvation_every - 1:
                other = next(r for r in neglected if r not in done)
                done.add(other)
                served += 1
                yield other, NEGLECTED
            if row not in done:
                done.add(row)
                served += 1
                yield row, LONGEST

    def _move(
        self, observation: Observation, slots: "Slots", ahead: Ints, due: Ints
    ) -> list[Decision]:
        t, names = observation.trajectories, observation.replicas.names
        decisions: list[Decision] = []
        for row in due.tolist():
            own = int(t.replica_row[row])
            crowded = bool(slots.reserved[own] > slots.capacity[own])
            if slots.spread <= self.spread and not crowded:
                continue
            target = slots.best(int(ahead[row]))
            if target < 0 or target == own or slots.count[target] + 1 >= slots.count[own]:
                continue
            slots.take(own, -int(ahead[row]), -1)
            slots.take(target, int(ahead[row]))
            why = "its replica's KV cache is full" if crowded else f"{names[target]} has the fewest"
            decisions.append(
                Decision(
                    int(t.trajectory_id[row]),
                    Action.MIGRATE,
                    NAME,
                    f"a chunk is written; {why}",
                    names[target],
                    row=row,
                )
            )
        return decisions

    def state_dict(self) -> dict[str, Any]:
        """Where everyone was, chunks placed, placements."""
        return {
            "homes": self._homes.state_dict(),
            "chunks": self._chunks.tolist(),
            "served": self._served,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace it."""
        self._homes = Homes.from_state(state["homes"])
        self._chunks = np.array(state["chunks"], dtype=np.int64)
        self._served = int(state["served"])


def _probes(observation: Observation) -> tuple[Ints, Ints]:
    """Queued rows that are probes, the shortest first; the other queued rows.

    A group none of whose trajectories is under way or has ended has a probe: the waiting one that
    has written most (a probe that lost its replica), else the one of the lowest id.
    """
    t, queued = observation.trajectories, observation.queued
    begun = np.zeros(len(observation.groups), dtype=np.bool_)
    begun[t.group_row[t.phase != Phase.QUEUED]] = True
    fresh = queued[~begun[t.group_row[queued]]]
    fresh = fresh[np.lexsort((fresh, -t.generated_tokens[fresh], t.group_row[fresh]))]
    _, first = np.unique(t.group_row[fresh], return_index=True)
    probes = fresh[first]
    probes = probes[np.lexsort((probes, t.generated_tokens[probes]))]
    return probes, np.setdiff1d(queued, probes, assume_unique=True)


def _estimates(observation: Observation) -> Ints:
    """(g,) tokens that each group's trajectories are expected to reach."""
    t, count = observation.trajectories, len(observation.groups)
    cap, longest = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(cap, t.group_row, t.max_new_tokens)
    ended = t.phase == Phase.ENDED
    np.maximum.at(longest, t.group_row[ended], t.generated_tokens[ended])
    known = np.zeros(count, dtype=np.bool_)
    known[t.group_row[ended]] = True
    return np.where(known, longest, cap)


PLUGIN: type[PlacementPolicy] = Seer
