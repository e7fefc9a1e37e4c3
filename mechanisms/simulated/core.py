"""A fleet in virtual time: trajectories are submitted, replicas serve them, events come out.

    core = SimulatedCore()
    replica = core.add_replica(ReplicaSpec(fixed_s=0.012, sequence_s=0.00015))
    rows = core.add(Trajectories.of_one_turn([100.0, 200.0]))
    core.submit(rows, [replica, replica])
    events = core.advance(60.0, stop_on=[EventKind.FINISHED])

Continuous batching (a queue, `max_num_seqs`, KV capacity with preemption of the youngest), prefill
with a prefix cache, turns with tool waits, mixed hardware, speculation, weight updates and deaths;
`spec` has the formulas, `_kernel` the events.  No randomness: the same calls give the same bytes,
and looking (any number of `advance` calls in place of one, `state`, `generated_tokens`) changes
nothing.  Every call acts at `now_s`; a copy (`copy.deepcopy`) goes its own way.

A core is for one thread at a time, whichever that is.  The compiled parts run without the
interpreter's lock, so a copy that is advanced in a worker thread does not hold up an event loop.

Simplified, where a real engine differs:
- Tokens are a fluid: a trajectory that is aborted may have written a part of a token.
- A prefill stalls its replica for its whole cost, while a chunked prefill shares iterations with
  decoding; the sum is the same.  It is not refunded when its trajectory is aborted, unless the
  batch is then empty.  The token that a prefill writes besides is not counted.
- All admitted at one moment count as one iteration of prefill (`prefill_step_s`), however many
  tokens they are, and what makes a batch's iteration longer than one sequence's, the host's part
  included, counts as paid of it.
- The prefix cache knows whole prompts of groups on one clock, not blocks; only a preempted or
  aborted trajectory's own prompt counts as well, and none of what it wrote.
- A context kept between turns is evictable cache: it is not held against the KV capacity, and only
  `prefix_cache_tokens` bounds it.  A group's prompt is held against it once per running sibling,
  though an engine stores its blocks once.
- A trajectory that alone exceeds the KV capacity runs alone to its end; an engine would refuse it.
"""

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from steersman.estimators.observation import Floats, Ints
from steersman.mechanisms.simulated import _kernel
from steersman.mechanisms.simulated._state import (
    EVENT,
    NONE,
    TIMES,
    Records,
    batch_record,
    empty_state,
    grown,
    replica_record,
    trajectory_records,
    turn_records,
    widened,
)
from steersman.mechanisms.simulated.spec import (
    EventKind,
    Events,
    ReplicaSpec,
    ReplicaState,
    Trajectories,
    check,
)

_LOG_ROWS = 4096
"""Room for the events of one advance; it grows when a batch might not fit any more."""


class SimulatedCore:
    """See the module."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self._state = empty_state()
        self._trajectories = self._turns = self._replicas = self._groups = self._prefixes = 0
        self._log = np.zeros(_LOG_ROWS, EVENT)
        self._unreported: list[Records] = []
        """What calls other than `advance` caused."""
        self._fixed_s: list[float] = []
        """(r,) of each replica's specification, at speed 1."""

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self._now_s

    @property
    def next_event_s(self) -> float:
        """No event is earlier; inf: nothing will happen by itself."""
        if self._unreported:
            return self._now_s
        return float(self._state.next_s[: self._replicas].min(initial=math.inf))

    def add(self, trajectories: Trajectories) -> Ints:
        """Make trajectories known; returns their rows, which count up from 0."""
        s, first, n = self._state, self._trajectories, len(trajectories)
        turns = len(trajectories.turn_tokens)
        groups = max(self._groups, 1 + int(trajectories.group.max(initial=-1)))
        self._state = s = s._replace(
            trajectories=grown(s.trajectories, first + n),
            turns=grown(s.turns, self._turns + turns),
            group_prefix=grown(s.group_prefix, groups),
        )
        s.trajectories[first : first + n] = trajectory_records(trajectories, self._turns)
        s.turns[self._turns : self._turns + turns] = turn_records(trajectories)
        s.group_prefix[self._groups : groups] = NONE
        self._trajectories, self._turns, self._groups = first + n, self._turns + turns, groups
        return np.arange(first, first + n)

    def add_replica(self, spec: ReplicaSpec) -> int:
        """A replica joins now; returns its row, which counts up from 0."""
        s, r = self._state, self._replicas
        self._state = s = s._replace(
            replicas=grown(s.replicas, r + 1),
            next_s=grown(s.next_s, r + 1),
            queues=grown(s.queues, r + 1),
            heap=widened(grown(s.heap, r + 1), spec.max_num_seqs),
            batch_s=widened(grown(s.batch_s, r + 1), len(spec.batch_s)),
        )
        s.batch_s[r, : len(spec.batch_s)] = batch_record(spec)
        s.replicas[r : r + 1] = replica_record(spec, self._now_s)
        s.queues["head"][r] = s.queues["tail"][r] = NONE
        s.next_s[r] = math.inf
        self._replicas = r + 1
        self._fixed_s.append(spec.fixed_s)
        return r

    def submit(self, rows: ArrayLike, replicas: ArrayLike, at_s: float = -math.inf) -> None:
        """Send `rows` (m,) to `replicas` (m,), in this order, to arrive at `at_s` or now.

        A trajectory that waits for a tool joins the queue only when the tool has answered.  Raises
        `InvalidInputError`, and sends none, if one is unknown, ended, already on a replica, or its
        replica is unknown or dead.
        """
        who, where = _ints(rows), _ints(replicas)
        good = {"one replica for each": who.shape == where.shape, "at_s": at_s < math.inf}
        check(good, "submit")
        s = self._state
        self._state = s = s._replace(prefixes=grown(s.prefixes, self._prefixes + len(who)))
        known = self._trajectories, self._replicas, self._prefixes
        sent, self._prefixes = _kernel.submit(s, *known, who, where, at_s, self._now_s)
        if sent < len(who):
            check({f"trajectory {who[sent]} on replica {where[sent]}": False}, "submit")

    def abort(self, rows: ArrayLike) -> Floats:
        """Withdraw `rows` (m,) from their replicas; returns (m,) the tokens generated so far.

        They may be submitted again, anywhere.  What has ended meanwhile stays as it is.
        """
        who = _ints(rows)
        self._check_rows(who)
        _kernel.abort(self._state, who, self._now_s, np.empty(len(who), np.int64))
        return self._state.trajectories["generated"][who].astype(np.float64)

    def kill(self, replica: int) -> None:
        """The replica dies; what is on it is reported as LOST by the next `advance`."""
        self._check_replica(replica)
        s = self._state
        held = int(s.replicas["running"][replica] + s.queues["count"][replica].sum())
        log = np.zeros(held, EVENT)
        self._unreported.append(log[: _kernel.kill(s, replica, self._now_s, log)])

    def pause(self, replica: int) -> None:
        """Hold everything there, and admit nobody, until `resume`; the time is not busy."""
        self._set(replica, paused=1)

    def resume(self, replica: int) -> None:
        """End a pause."""
        self._set(replica, paused=0)

    def new_weights(self, replica: int) -> None:
        """Forget every KV cache entry: whoever runs is preempted and prefilled again, in order.

        Between `pause` and `resume` this is the "keep" weight update; after an `abort` of all, or
        on a drained replica, it only empties the prefix cache.
        """
        self._check_replica(replica)
        log = np.zeros(int(self._state.replicas["running"][replica]), EVENT)
        self._unreported.append(log[: _kernel.new_weights(self._state, replica, self._now_s, log)])

    def set_speculation(
        self,
        replica: int,
        tokens_per_iteration: float,
        cost_factor: float,
        draft_s: float = 0.0,
    ) -> None:
        """Change both, meanings as in `ReplicaSpec`; (1, 1) turns speculation off.

        `draft_s` is what drafting adds to an iteration, whatever the batch, at speed 1.
        """
        ReplicaSpec(1.0, tokens_per_iteration=tokens_per_iteration, cost_factor=cost_factor)
        check({"draft_s": 0 <= draft_s < math.inf}, "replica")
        self._check_replica(replica)
        fixed_s = (self._fixed_s[replica] + draft_s) / self._state.replicas["speed"][replica]
        self._set(
            replica,
            tokens_per_iteration=tokens_per_iteration,
            cost_factor=cost_factor,
            fixed_s=fixed_s,
        )

    def set_speed(self, replica: int, speed: float) -> None:
        """From now on everything there takes 1 / `speed` of its specification's time."""
        ReplicaSpec(1.0, speed=speed)
        self._check_replica(replica)
        record = self._state.replicas[replica]
        factor = float(record["speed"]) / speed
        _kernel.sync(self._state.replicas, self._state.heap, replica, self._now_s)
        changed = {name: float(record[name]) * factor for name in TIMES}
        self._state.batch_s[replica] *= factor
        self._set(replica, speed=speed, **changed)

    def advance(self, until_s: float, stop_on: Collection[EventKind] = ()) -> Events:
        """Let time pass until `until_s`, or to the first moment with an event of `stop_on`.

        Returns what happened since the last call.  inf: until nothing happens by itself any more,
        and time then stands at the last event.
        """
        check({"until_s": until_s >= self._now_s}, "advance")
        kinds = sum(1 << kind for kind in frozenset(stop_on))
        parts, self._unreported = self._unreported, []
        if any(kinds >> int(kind) & 1 for part in parts for kind in part["kind"]):
            return self._events(parts)
        more = True
        while more:
            s = self._state
            logged, more, until_s = _kernel.advance(s, self._replicas, until_s, self._log, kinds)
            parts.append(self._log[:logged].copy())
            if more:
                self._log = np.zeros(max(2 * len(self._log), 2 * s.heap.shape[1]), EVENT)
        if until_s == math.inf:
            times = s.replicas["now_s"][: self._replicas]
            until_s = float(times.max(initial=self._now_s))
        self._now_s = until_s
        return self._events(parts)

    def generated_tokens(self, rows: ArrayLike | None = None) -> Floats:
        """(m,) tokens generated so far, over all attempts and turns, of `rows` or of all."""
        who = np.arange(self._trajectories) if rows is None else _ints(rows)
        self._check_rows(who)
        out = np.empty(len(who))
        _kernel.generated(self._state, self._replicas_now(), who, out)
        return out

    def replica_of(self, rows: ArrayLike) -> Ints:
        """(m,) replica of each trajectory, also while it is on its way there; -1: none."""
        who = _ints(rows)
        self._check_rows(who)
        return self._state.trajectories["replica"][who].astype(np.int64)

    def inflight(self) -> Ints:
        """(r,) trajectories on each replica, those on their way included; the cheapest figure."""
        r = self._replicas
        queued = self._state.queues["count"][:r].sum(axis=1)
        return np.asarray(self._state.replicas["running"][:r] + queued)

    def state(self) -> ReplicaState:
        """All replicas' figures now."""
        now, count = self._replicas_now(), self._state.queues["count"][: self._replicas]
        floats = ("iterations", "busy_s", "sequences_run", "prefill_tokens")
        return ReplicaState(
            alive=now["alive"].copy(),
            running=now["running"].copy(),
            waiting=count[:, _kernel.QUEUED].copy(),
            away=count[:, _kernel.COMING].copy(),
            kv_tokens=np.clip(now["kv"], 0.0, now["capacity"]),
            preemptions=now["preemptions"].copy(),
            **{name: now[name].copy() for name in floats},
        )

    def _replicas_now(self) -> Records:
        replicas = self._state.replicas[: self._replicas].copy()
        _kernel.sync_all(replicas, self._state.heap, self._replicas, self._now_s)
        return replicas

    def _set(self, replica: int, **values: float) -> None:
        self._check_replica(replica)
        s = self._state
        _kernel.sync(s.replicas, s.heap, replica, self._now_s)
        for name, value in values.items():
            s.replicas[name][replica] = value
        _kernel.refresh(s, replica)

    def _check_rows(self, rows: Ints) -> None:
        known = len(rows) == 0 or (rows.min() >= 0 and rows.max() < self._trajectories)
        check({"trajectory row": bool(known)}, "fleet")

    def _check_replica(self, replica: int) -> None:
        check({"replica row": 0 <= replica < self._replicas}, "fleet")

    def _events(self, parts: list[Records]) -> Events:
        log = parts[0] if len(parts) == 1 else np.concatenate(parts)
        time_s, kind, row = log["time_s"], log["kind"], log["row"]
        order = np.lexsort((row, kind, time_s))
        return Events(time_s[order], kind[order], row[order], log["replica"][order])


def _ints(values: ArrayLike) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)
