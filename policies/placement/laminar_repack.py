"""Laminar's repack: merge replicas that run down, so that whole replicas are free for new work.

Laminar (arXiv 2510.12633): every replica takes a batch, works it off and only then takes the next;
its tail keeps a whole replica busy with a few trajectories.  Repack moves such tails together onto
few replicas and releases the others.  The rule that the paper uses for when and where was not found
in what we could read; this one is DERIVED from its abstract and from how KV caches fill and drain:

- A replica *runs down* when it has had its batch, nothing waits in its engine, and the tokens on it
  are at most `run_down` of the most it has held since it was last empty.
- Replicas that run down, the fullest first, go onto the fullest of those before them that has room
  (best-fit decreasing): the KV cache stays below `kv_share`, the batch within the engine's slots,
  and an iteration becomes at most `slowdown` longer than that of the slower of the two (the flat
  part of the iteration time).  All that runs on the source moves, or nothing.
- Only while work waits that no replica may take, and only as many replicas as it fills; those with
  the fewest tokens first.

*Placement.*  In a stream an empty replica takes its share, (all that is open) / (living replicas),
as it arrives, each trajectory to the replica with the fewest in flight; then none until it is empty
again, by itself or by a repack.  In a barrier nothing comes after the step's work, so a released
replica would be of no use: everything is placed at once where the fewest are in flight, and nothing
is repacked.

Not here: the released replica pulling newer weights, Laminar's other gain (fleets here take all
weights at once).  Without that, a stream that tops every replica up all the time, as the default
does, is about as fast: what repack wins back is what working in batches costs.
Correctness class: exact.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Floats, Ints, Objective, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Action, Decision, place
from steersman.policies.placement._fewest import fewest_first

NAME = "laminar_repack"


@dataclass
class LaminarRepack:
    """No figure is the paper's; each says what it trades."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    run_down: float = 0.95
    """Share of its peak at which a replica may be merged; small: tails hold replicas longer."""
    kv_share: float = 0.8
    """Most of the KV cache that a merge may fill: what is merged still grows."""
    slowdown: float = 0.5
    """Share by which a merge may lengthen an iteration; 0: no merge."""
    rest_s: float = 10.0
    """Seconds after a move before a trajectory, and so its replica, is moved again."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "run_down": Range(0.1, 1.0),
        "kv_share": Range(0.3, 0.9),
        "slowdown": Range(0.0, 2.0),
        "rest_s": Range(1.0, 100.0, log=True),
    }
    GUARD: ClassVar[Mapping[str, float]] = {
        "max_moves_per_tick": 1024,
        "max_moves_per_trajectory": 64,
    }
    """A merge moves a whole replica's tail; half of it would release nothing."""

    _left: dict[str, int] = field(default_factory=dict, init=False)
    """By replica: trajectories it may still take before it must be empty."""
    _peak: dict[str, int] = field(default_factory=dict, init=False)
    """By replica: most tokens it has held since it was empty."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Give out what waits; in a stream, make room for the rest of it."""
        if not observation.replicas.alive.any():
            return []
        if observation.trainer.objective is not Objective.STREAM:
            return _place_all(observation)
        share, left, peak = self._follow(observation)
        decisions = _place_in_batches(observation, left)
        waiting = len(observation.queued) - len(decisions)
        if waiting:
            ready = self._running_down(observation, left, peak)
            merges = self._merges(observation, forecast, ready)
            for source, target in merges[: math.ceil(waiting / share)]:
                decisions += _move_all(observation, source, target)
        names = observation.replicas.names
        self._left = dict(zip(names, left.tolist(), strict=True))
        self._peak = dict(zip(names, peak.tolist(), strict=True))
        return decisions

    def _follow(self, observation: Observation) -> tuple[int, Ints, Ints]:
        """A batch; (r,) what each replica may still take; (r,) the most it has held."""
        replicas, count = observation.replicas, observation.inflight()
        everything = int(count.sum()) + len(observation.queued)
        share = max(math.ceil(everything / int(replicas.alive.sum())), 1)
        left = np.array([self._left.get(name, 0) for name in replicas.names], dtype=np.int64)
        peak = np.array([self._peak.get(name, 0) for name in replicas.names], dtype=np.int64)
        left = np.where(count > 0, left, share) * replicas.alive
        peak = np.where(count > 0, np.maximum(peak, observation.resident_tokens()), 0)
        return share, left, peak

    def _running_down(self, observation: Observation, left: Ints, peak: Ints) -> Ints:
        """Replicas that may be merged: all that is on them runs, and none has just moved."""
        t, replicas, r = observation.trajectories, observation.replicas, len(left)
        moving = observation.destination_row[t.phase == Phase.LEAVING]
        fresh = observation.running[
            observation.now_s - t.moved_s[observation.running] < self.rest_s
        ]
        busy = np.zeros(r, dtype=np.bool_)
        busy[moving[moving >= 0]] = True
        busy[t.replica_row[fresh]] = True
        tokens = observation.resident_tokens()
        down = (left <= 0) & (tokens <= self.run_down * peak) & (observation.inflight() > 0)
        return np.flatnonzero(replicas.alive & down & ~busy & (replicas.waiting == 0))

    def _merges(
        self, observation: Observation, forecast: Forecast, ready: Ints
    ) -> list[tuple[int, int]]:
        """(source, target) pairs by best-fit decreasing, the smallest source first."""
        names, tokens = observation.replicas.names, observation.resident_tokens()
        size = tokens.copy()
        count = observation.inflight()
        capacity = observation.replicas.kv_capacity_tokens
        room = np.where(capacity > 0, self.kv_share * capacity, np.inf)
        merges: list[tuple[int, int]] = []
        stay: list[int] = []
        for row in sorted(ready.tolist(), key=lambda r: (-tokens[r], names[r])):
            fits = self._fits(observation, forecast, count, tokens, row)
            able = [r for r in stay if fits[r] and tokens[r] + tokens[row] <= room[r]]
            if not able:
                stay.append(row)
                continue
            target = min(able, key=lambda r: (room[r] - tokens[r], -tokens[r], names[r]))
            count[target] += count[row]
            tokens[target] += tokens[row]
            merges.append((row, target))
        return sorted(merges, key=lambda pair: (size[pair[0]], names[pair[0]]))

    def _fits(
        self,
        observation: Observation,
        forecast: Forecast,
        count: Ints,
        tokens: Ints,
        row: int,
    ) -> list[bool]:
        """(r,) whether each replica is still fast with what runs on `row` besides."""
        seconds = forecast.throughput.iteration_s
        alone: Floats = seconds(count.astype(np.float64), tokens.astype(np.float64))
        merged = seconds(
            (count + count[row]).astype(np.float64), (tokens + tokens[row]).astype(np.float64)
        )
        fast = merged <= (1 + self.slowdown) * np.maximum(alone, alone[row])
        slots = count + count[row] <= np.maximum(observation.replicas.max_num_seqs, 1)
        return [bool(ok) for ok in fast & slots]

    def state_dict(self) -> dict[str, Any]:
        """Batches and peaks."""
        return {"left": dict(self._left), "peak": dict(self._peak)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._left, self._peak = dict(state["left"]), dict(state["peak"])


def _place_all(observation: Observation) -> list[Decision]:
    """Everything that waits, where the fewest are in flight."""
    queued, living = observation.queued, np.flatnonzero(observation.replicas.alive)
    rank = observation.replicas.name_rank.tolist()
    rows = fewest_first(observation.inflight(), living, len(queued), lambda r, n: float(rank[r]))
    return [
        place(observation, row, replica, NAME, "fewest in flight")
        for row, replica in zip(queued.tolist(), rows, strict=True)
    ]


def _place_in_batches(observation: Observation, left: Ints) -> list[Decision]:
    """As far as batches are not full, the oldest steps first; `left` is counted down."""
    t, queued = observation.trajectories, observation.queued
    rank = observation.replicas.name_rank
    count, decisions = observation.inflight(), list[Decision]()
    order = queued[np.lexsort((queued, observation.groups.step[t.group_row[queued]]))]
    for row in order[: int(left.sum())].tolist():
        load = np.where(left > 0, count * len(count) + rank, np.iinfo(np.int64).max)
        target = int(np.argmin(load))
        count[target] += 1
        left[target] -= 1
        decisions.append(place(observation, row, target, NAME, "belongs to its batch"))
    return decisions


def _move_all(observation: Observation, source: int, target: int) -> list[Decision]:
    """Empty a replica."""
    t, names = observation.trajectories, observation.replicas.names
    rows = observation.running[t.replica_row[observation.running] == source]
    reason = f"{names[source]} is released: its last {len(rows)} fit besides those of this one"
    return [
        Decision(int(t.trajectory_id[row]), Action.MIGRATE, NAME, reason, names[target], row=row)
        for row in rows.tolist()
    ]


PLUGIN: type[PlacementPolicy] = LaminarRepack
