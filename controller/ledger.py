"""The books of a run: who is where, what is owed, and the snapshot the controller decides on.

Executions report every change of phase; the ledger folds them into columns, counts them, writes
them to the trace and closes groups.  It never commands.  A trajectory that ended without being an
answer (restarted, expired) is replaced in its slot by a fresh one, so that a group always closes
with exactly `size` answers.

A group is *settled* when each slot is answered or parked; it is *complete* when each is answered.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np

from steersman.controller.columns import Columns
from steersman.controller.results import Counts, Group, Prompt, Trajectory
from steersman.controller.trace import records
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import (
    NO_ROW,
    NO_VERSION,
    EndedTable,
    Floats,
    GroupTable,
    Ints,
    Observation,
    ReplicaTable,
    TrainerSignal,
    TrajectoryTable,
)
from steersman.mechanisms.execution import (
    Execution,
    ToReplica,
    TrajectorySpec,
    mixed_seed,
    replace_seed,
)
from steersman.mechanisms.fleet import Attempt, Fleet, Sampling

REPLACED = frozenset({Disposition.RESTARTED, Disposition.EXPIRED})
"""Ends after which a fresh sample takes the slot."""


@dataclass(eq=False)
class GroupState:
    """A group that is not delivered yet."""

    group_id: int
    prompt: Prompt
    size: int
    step: int
    max_new_tokens: int
    sampling: Sampling
    row: int
    slots: list[Execution] = field(default_factory=list)
    answered: int = 0
    parked: int = 0

    @property
    def complete(self) -> bool:
        """Every slot has its answer."""
        return self.answered == self.size

    @property
    def settled(self) -> bool:
        """Nothing of it will change before a parked trajectory is resumed."""
        return self.answered + self.parked == self.size


@dataclass(slots=True)
class _Entry:
    """Where an unfinished group's trajectory is kept."""

    group: GroupState
    slot: int
    row: int


class Ledger:
    """All trajectories of one session.  Implements the executions' `Listener`."""

    def __init__(
        self,
        fleet: Fleet,
        trace: TraceWriter,
        clock: Callable[[], float],
        run_id: str,
        trace_token_ids: bool = False,
    ) -> None:
        self.fleet = fleet
        self._trace_token_ids = trace_token_ids
        self.groups: dict[int, GroupState] = {}
        self.executions: dict[int, Execution] = {}
        """Unfinished trajectories by id."""
        self.waiting = 0
        """Trajectories that wait for a placement."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when something waits for a placement, or a group has settled."""
        self._trace, self._clock, self._run_id = trace, clock, run_id
        self._origin_s = clock()
        self._entries: dict[int, _Entry] = {}
        self._replica_rows: dict[str, int] = {}
        self._next_id = self._next_group = 0
        self._ended_rows: list[tuple[int, int, int, int, int, bool, int]] = []
        self._totals: Counter[str] = Counter()
        self._dispositions: Counter[str] = Counter()
        self._trajectories = Columns(
            "trajectory_id",
            floats=("queued_s", "placed_s", "moved_s"),
            ints=(
                "group",
                "phase",
                "replica_row",
                "target_row",
                "prompt_tokens",
                "generated_tokens",
                "max_new_tokens",
                "moves",
                "deferred",
                "restarts",
                "oldest_weight_version",
            ),
        )
        self._groups = Columns("group_id", floats=(), ints=("prompt_key", "size", "ended", "step"))

    def now_s(self) -> float:
        """Seconds since the ledger was opened."""
        return self._clock() - self._origin_s

    def admit(
        self, prompt: Prompt, size: int, max_new_tokens: int, sampling: Sampling, step: int
    ) -> GroupState:
        """Open a group: `size` trajectories that wait for a placement."""
        group_id = self._next_group
        self._next_group += 1
        row = self._groups.take(
            group_id=group_id, prompt_key=prompt.key, size=size, ended=0, step=step
        )
        group = GroupState(group_id, prompt, size, step, max_new_tokens, sampling, row)
        self.groups[group_id] = group
        self._trace.write(
            records.GroupAdmitted(
                t_s=self.now_s(),
                group_id=group_id,
                prompt_id=prompt.prompt_id,
                prompt_key=prompt.key,
                prompt_tokens=len(prompt.token_ids),
                size=size,
                max_new_tokens=max_new_tokens,
                step=step,
                prompt_token_ids=list(prompt.token_ids) if self._trace_token_ids else None,
            )
        )
        for slot in range(size):
            group.slots.append(self._queue(group, slot, replaces=None))
        self.on_change()
        return group

    def deliver(self, group: GroupState, step: int, weight_version: int) -> Group:
        """Hand a complete group over and forget it."""
        del self.groups[group.group_id]
        self._groups.give_back(group.row)
        for execution in group.slots:
            entry = self._entries.pop(execution.spec.trajectory_id)
            self._trajectories.give_back(entry.row)
        self._close(group, complete=True)
        return Group(
            group_id=group.group_id,
            prompt_id=group.prompt.prompt_id,
            admitted_step=group.step,
            delivered_step=step,
            trajectories=tuple(
                _result(execution, group, slot, weight_version)
                for slot, execution in enumerate(group.slots)
            ),
        )

    def abandon(self, group: GroupState) -> None:
        """Forget a group whose caller went away; its executions must all have ended."""
        del self.groups[group.group_id]
        self._groups.give_back(group.row)
        for execution in group.slots:
            self._trajectories.give_back(self._entries.pop(execution.spec.trajectory_id).row)
        self._close(group, complete=False)

    def counts(self) -> Counts:
        """The books as they stand."""
        return Counts(
            queued=self._next_id,
            ended=self._totals["ended"],
            parked=sum(group.parked for group in self.groups.values()),
            answered=self._totals["answered"],
            dispositions=dict(self._dispositions),
            moves=self._totals["moves"],
            deferrals=self._totals["deferrals"],
        )

    def observation(self, tick: int, trainer: TrainerSignal) -> Observation:
        """The snapshot for one decision.  `ended` starts afresh after it."""
        ended, self._ended_rows = self._ended_rows, []
        groups = self._group_table()
        return Observation(
            now_s=self.now_s(),
            tick=tick,
            trainer=trainer,
            trajectories=self._trajectory_table(groups.group_id),
            groups=groups,
            replicas=replica_table(self.fleet, self._clock()),
            ended=_ended_table(ended),
        )

    def generated(self) -> tuple[list[int], list[int]]:
        """Ids and token counts of what is running, for the trace."""
        running = [e for e in self.executions.values() if e.attempt is not None]
        return (
            [e.spec.trajectory_id for e in running],
            [e.generated_tokens for e in running],
        )

    # Listener

    def phase_changed(self, execution: Execution, old: Phase, why: str) -> None:
        """Fold one change of phase into the books."""
        trajectory_id = execution.spec.trajectory_id
        entry, now_s = self._entries[trajectory_id], self.now_s()
        self._update(entry, execution, old, now_s)
        self._trace.write(
            records.PhaseChanged(
                t_s=now_s,
                trajectory_id=trajectory_id,
                old=old.name,
                new=execution.phase.name,
                why=why,
                replica=execution.replica or "",
                generated_tokens=execution.generated_tokens,
            )
        )
        group = entry.group
        group.parked += (execution.phase is Phase.PARKED) - (old is Phase.PARKED)
        self.waiting += (execution.phase is Phase.QUEUED) - (old is Phase.QUEUED)
        if execution.phase is Phase.ENDED:
            self._ended(execution, entry, now_s)
        if execution.phase in (Phase.QUEUED, Phase.PARKED, Phase.ENDED):
            self.on_change()

    def attempt_started(self, execution: Execution, attempt: Attempt) -> None:
        """Record it."""
        request = attempt.request
        self._trace.write(
            records.AttemptStarted(
                t_s=self.now_s(),
                attempt_id=request.attempt_id,
                trajectory_id=execution.spec.trajectory_id,
                replica=attempt.replica,
                prefix_tokens=len(request.token_ids),
                max_tokens=request.max_tokens,
            )
        )

    def attempt_ended(self, execution: Execution, attempt: Attempt) -> None:
        """Record it."""
        end = attempt.end
        assert end is not None
        self._trace.write(
            records.AttemptEnded(
                t_s=self.now_s(),
                attempt_id=attempt.request.attempt_id,
                trajectory_id=execution.spec.trajectory_id,
                replica=attempt.replica,
                reason=end.reason.value,
                tokens=len(end.tokens),
                spans=end.spans,
                detail=end.detail,
            )
        )

    # The rest is bookkeeping

    def _queue(self, group: GroupState, slot: int, replaces: Execution | None) -> Execution:
        trajectory_id, now_s = self._next_id, self.now_s()
        self._next_id += 1
        prompt_token_ids = list(group.prompt.token_ids)
        row = self._trajectories.take(
            trajectory_id=trajectory_id,
            group=group.group_id,
            phase=Phase.QUEUED,
            replica_row=NO_ROW,
            target_row=NO_ROW,
            prompt_tokens=len(prompt_token_ids),
            generated_tokens=0,
            max_new_tokens=group.max_new_tokens,
            queued_s=now_s,
            placed_s=np.nan,
            moved_s=-np.inf,
            moves=0,
            deferred=0,
            restarts=0 if replaces is None else self._restarts(replaces) + 1,
            oldest_weight_version=NO_VERSION,
        )
        redraw = 0 if replaces is None else replaces.spec.trajectory_id + 1
        execution = Execution(
            spec=TrajectorySpec(
                trajectory_id=trajectory_id,
                prompt_token_ids=prompt_token_ids,
                max_new_tokens=group.max_new_tokens,
                sampling=_slot_sampling(group, slot, redraw),
            ),
            fleet=self.fleet,
            listener=self,
            run_id=self._run_id,
            correctness=CorrectnessClass.EXACT if replaces is None else CorrectnessClass.EMPIRICAL,
        )
        self.executions[trajectory_id] = execution
        self.waiting += 1
        self._entries[trajectory_id] = _Entry(group, slot, row)
        self._trace.write(
            records.TrajectoryQueued(
                t_s=now_s,
                trajectory_id=trajectory_id,
                group_id=group.group_id,
                slot=slot,
                replaces=-1 if replaces is None else replaces.spec.trajectory_id,
            )
        )
        return execution

    def _update(self, entry: _Entry, execution: Execution, old: Phase, now_s: float) -> None:
        columns, row = self._trajectories, entry.row
        columns["phase"][row] = execution.phase
        columns["replica_row"][row] = self._replica_row(execution.replica)
        intent = execution.intent
        target = intent.replica if isinstance(intent, ToReplica) else None
        columns["target_row"][row] = self._replica_row(target)
        columns["generated_tokens"][row] = execution.generated_tokens
        oldest = execution.oldest_weight_version
        columns["oldest_weight_version"][row] = NO_VERSION if oldest is None else oldest
        moves, deferrals = execution.moves, execution.deferrals
        if (moves, deferrals) != (columns["moves"][row], columns["deferred"][row]):
            self._totals["moves"] += moves - int(columns["moves"][row])
            self._totals["deferrals"] += deferrals - int(columns["deferred"][row])
            columns["moves"][row], columns["deferred"][row] = moves, deferrals
            columns["moved_s"][row] = now_s
        if execution.phase is Phase.RUNNING:
            columns["placed_s"][row] = now_s
        elif execution.phase is not Phase.LEAVING:
            columns["placed_s"][row] = np.nan
        if execution.phase is Phase.QUEUED:
            columns["queued_s"][row] = now_s

    def _restarts(self, execution: Execution) -> int:
        entry = self._entries[execution.spec.trajectory_id]
        return int(self._trajectories["restarts"][entry.row])

    def _replica_row(self, name: str | None) -> int:
        if name is None:
            return NO_ROW
        if name not in self._replica_rows:  # a fleet only ever appends replicas
            self._replica_rows = {info.name: i for i, info in enumerate(self.fleet.replicas)}
        return self._replica_rows[name]

    def _ended(self, execution: Execution, entry: _Entry, now_s: float) -> None:
        disposition, group = execution.disposition, entry.group
        assert disposition is not None
        trajectory_id = execution.spec.trajectory_id
        del self.executions[trajectory_id]
        self._totals["ended"] += 1
        self._dispositions[disposition.value] += 1
        oldest = execution.oldest_weight_version
        self._ended_rows.append(
            (
                trajectory_id,
                group.group_id,
                group.prompt.key,
                len(execution.spec.prompt_token_ids),
                len(execution.tokens),
                disposition is not Disposition.FINISHED,
                NO_VERSION if oldest is None else oldest,
            )
        )
        self._trace.write(
            records.TrajectoryEnded(
                t_s=now_s,
                trajectory_id=trajectory_id,
                group_id=group.group_id,
                slot=entry.slot,
                disposition=disposition.value,
                correctness=execution.correctness.name.lower(),
                weight=execution.weight,
                generated_tokens=len(execution.tokens),
                segments=[astuple(segment) for segment in execution.segments],
                moves=execution.moves,
                deferred=execution.deferrals,
            )
        )
        if disposition in REPLACED:
            group.slots[entry.slot] = self._queue(group, entry.slot, replaces=execution)
            self._trajectories.give_back(entry.row)
            del self._entries[trajectory_id]
        elif disposition.is_answer:
            self._totals["answered"] += 1
            group.answered += 1
            self._groups["ended"][group.row] += 1

    def _close(self, group: GroupState, complete: bool) -> None:
        self._trace.write(
            records.GroupEnded(
                t_s=self.now_s(),
                group_id=group.group_id,
                trajectory_ids=[e.spec.trajectory_id for e in group.slots],
                complete=complete,
            )
        )

    def _group_table(self) -> GroupTable:
        columns, order = self._groups, self._groups.order()
        return GroupTable(**{name: columns[name][order] for name in _GROUP_COLUMNS})

    def _trajectory_table(self, group_ids: Ints) -> TrajectoryTable:
        columns, entries = self._trajectories, self._entries
        generated = columns["generated_tokens"]
        for trajectory_id, execution in self.executions.items():
            if execution.attempt is not None:
                generated[entries[trajectory_id].row] = execution.generated_tokens
        order = columns.order()
        pick = {name: columns[name][order] for name in _TRAJECTORY_COLUMNS}
        return TrajectoryTable(
            group_row=np.searchsorted(group_ids, columns["group"][order]), **pick
        )


_GROUP_COLUMNS = ("group_id", "prompt_key", "size", "ended", "step")
_TRAJECTORY_COLUMNS = tuple(
    name for name in TrajectoryTable.__dataclass_fields__ if name != "group_row"
)


def _slot_sampling(group: GroupState, slot: int, redraw: int) -> Sampling:
    """The group's sampling with a seed of its own for each slot.

    The seed depends on what is asked (the how-many-eth group, which slot), not on when or where it
    runs, so that two policies under one seed draw the same trajectories while weights are the same.
    """
    seed = group.sampling.seed
    if seed is None:
        return group.sampling
    return replace_seed(group.sampling, mixed_seed(seed, group.group_id, slot, redraw))


def replica_table(fleet: Fleet, now_s: float) -> ReplicaTable:
    """The fleet's replicas as arrays; `now_s` is on the clock of `ReplicaStats.reported_s`."""
    infos = fleet.replicas
    stats = [fleet.stats(info.name) for info in infos]

    def ints(values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    def floats(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    return ReplicaTable(
        names=tuple(info.name for info in infos),
        pools=tuple(info.pool for info in infos),
        alive=np.array([fleet.is_alive(info.name) for info in infos], dtype=np.bool_),
        running=ints([s.running for s in stats]),
        waiting=ints([s.waiting for s in stats]),
        kv_cache_usage=floats([s.kv_cache_usage for s in stats]),
        kv_capacity_tokens=ints([info.kv_capacity_tokens for info in infos]),
        max_num_seqs=ints([info.max_num_seqs for info in infos]),
        preemptions=ints([s.preemptions for s in stats]),
        prefix_hit_share=floats([s.prefix_hits / max(s.prefix_queries, 1) for s in stats]),
        accepted_per_draft=floats(
            [s.accepted_tokens / s.drafts if s.drafts else np.nan for s in stats]
        ),
        weight_version=ints([s.weight_version for s in stats]),
        iterations=ints([s.iterations for s in stats]),
        busy_s=floats([s.busy_s for s in stats]),
        sequences_run=floats([s.sequences_run for s in stats]),
        metrics_age_s=floats([now_s - s.reported_s for s in stats]),
    )


def _ended_table(rows: list[tuple[int, int, int, int, int, bool, int]]) -> EndedTable:
    if not rows:
        return EndedTable.empty()
    table = np.array(rows, dtype=np.int64)
    ids, groups, keys, prompts, generated, censored, versions = table.T
    return EndedTable(ids, groups, keys, prompts, generated, censored.astype(np.bool_), versions)


def _result(execution: Execution, group: GroupState, slot: int, weight_version: int) -> Trajectory:
    assert execution.disposition is not None
    oldest = execution.oldest_weight_version
    return Trajectory(
        trajectory_id=execution.spec.trajectory_id,
        prompt_id=group.prompt.prompt_id,
        slot=slot,
        token_ids=execution.tokens,
        logprobs=execution.logprobs,
        segments=execution.segments,
        disposition=execution.disposition,
        correctness=execution.correctness,
        weight=execution.weight,
        lag=0 if oldest is None else weight_version - oldest,
        moves=execution.moves,
        deferrals=execution.deferrals,
    )
