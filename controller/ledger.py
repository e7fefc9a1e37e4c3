"""The books of a run: who is where, what is owed, and the snapshot the controller decides on.

Executions report every change of phase; the ledger folds them into columns, counts them, writes
them to the trace and closes groups.  It never commands.  A trajectory that ended without being an
answer (restarted, expired) is replaced in its slot by a fresh one, so that a group always closes
with exactly `size` answers.  A complete group may grow by further samples before it is delivered.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steersman.controller.board import (
    Board,
    EndedRow,
    RewardRow,
    ended_row,
    ended_table,
    oldest_version,
    replica_table,
    reward_table,
)
from steersman.controller.groups import GroupState
from steersman.controller.results import (
    CHOSEN_BY_THE_CALLER,
    Counts,
    Group,
    GroupTerms,
    Prompt,
)
from steersman.controller.trace import records
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import REPLACED, CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import NO_VERSION, Observation, TrainerSignal
from steersman.mechanisms.execution import Execution, TrajectorySpec
from steersman.mechanisms.fleet import Attempt, Fleet, Payload, Sampling

MAX_UNLEARNED = 65_536
"""Ends and rewards kept for a controller that is too busy to learn, the newest of them."""
MAX_UNREWARDED = 65_536
"""Answers that wait for their reward, beyond which the oldest are given up: the steps of a large
run; a trainer that never rewards must not fill the memory."""
_PHASES = tuple(phase.name for phase in Phase)
"""By number: looking an enum's name up costs more than all else in a record."""
_CLASSES = tuple(correctness.name.lower() for correctness in CorrectnessClass)


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
        self.inflight: Counter[str] = Counter()
        """Attempts under way, by replica."""
        self.attempt_ends: Counter[str] = Counter()
        """Attempts that ended, by `EndReason`."""
        self.waiting = 0
        """Trajectories that wait for a placement."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when something waits for a placement, or a group has settled."""
        self.on_complete: Callable[[], None] = lambda: None
        """Called when a group has its last answer while other trajectories are unfinished."""
        self.on_end: Callable[[Execution], None] = lambda execution: None
        """Called when a trajectory ends and nothing takes its slot."""
        self._trace, self._clock, self._run_id = trace, clock, run_id
        self._origin_s = clock()
        self._entries: dict[int, _Entry] = {}
        self._next_id = self._next_group = 0
        self._ended_rows: deque[EndedRow] = deque(maxlen=MAX_UNLEARNED)
        self._reward_rows: deque[RewardRow] = deque(maxlen=MAX_UNLEARNED)
        self._answered: dict[int, tuple[GroupState, int]] = {}
        """Answered trajectories whose reward may still come, oldest first: group and version."""
        self._totals: Counter[str] = Counter()
        self._dispositions: Counter[str] = Counter()
        self._board = Board(fleet)

    def now_s(self) -> float:
        """Seconds since the ledger was opened."""
        return self._clock() - self._origin_s

    def admit(
        self,
        prompt: Prompt,
        size: int,
        max_new_tokens: int,
        sampling: Sampling,
        step: int,
        terms: GroupTerms = CHOSEN_BY_THE_CALLER,
        prompt_tokens: int | None = None,
    ) -> GroupState:
        """Open a group: `size` trajectories that wait for a placement; 0: they will `join`.

        `prompt_tokens` tells how long the prompt is where its token ids are not known here.
        """
        group_id = self._next_group
        self._next_group += 1
        row = self._board.add_group(group_id, prompt, size, step)
        group = GroupState(group_id, prompt, size, step, max_new_tokens, sampling, row, terms)
        self.groups[group_id] = group
        self._trace.write(
            records.GroupAdmitted(
                t_s=self.now_s(),
                group_id=group_id,
                prompt_id=prompt.prompt_id,
                prompt_key=prompt.key,
                prompt_tokens=len(prompt.token_ids) if prompt_tokens is None else prompt_tokens,
                size=size,
                max_new_tokens=max_new_tokens,
                step=step,
                inclusion_probability=terms.inclusion_probability,
                prompt_weight=terms.weight,
                prompt_policy=terms.policy,
                features=list(prompt.features),
                prompt_token_ids=list(prompt.token_ids) if self._trace_token_ids else None,
            )
        )
        for slot in range(size):
            group.slots.append(self._queue(group, slot, replaces=None))
        self.on_change()
        return group

    def grow(self, group: GroupState, count: int) -> None:
        """`count` samples more for a complete group that was not delivered yet."""
        assert group.complete
        assert count > 0
        group.extended_from = group.size
        group.size += count
        self._board.grow_group(group.row, group.size)
        self._trace.write(
            records.GroupExtended(t_s=self.now_s(), group_id=group.group_id, size=group.size)
        )
        for slot in range(group.extended_from, group.size):
            group.slots.append(self._queue(group, slot, replaces=None))
        self.on_change()

    def join(
        self, group: GroupState, max_new_tokens: int, payloads: Sequence[Payload]
    ) -> list[Execution]:
        """One sample more for each of the payloads, whether the group is complete or not."""
        first = len(group.slots)  # more than its size where clients went away
        group.size += len(payloads)
        self._board.grow_group(group.row, group.size)
        self._trace.write(
            records.GroupExtended(t_s=self.now_s(), group_id=group.group_id, size=group.size)
        )
        for slot, payload in enumerate(payloads, start=first):
            execution = self._queue(group, slot, None, max_new_tokens, payload)
            group.slots.append(execution)
        self.on_change()
        return group.slots[first:]

    def deliver(self, group: GroupState, step: int, weight_version: int) -> Group:
        """Hand a complete group over and forget it."""
        self._forget(group, complete=True)
        return group.answer(step, weight_version)

    def close(self, group: GroupState) -> None:
        """Forget a group whose answers were handed over one by one; all of it has ended."""
        self._forget(group, complete=group.complete)

    def abandon(self, group: GroupState) -> None:
        """Forget a group whose caller went away; its executions must all have ended."""
        self._forget(group, complete=False)

    def resume_parked(self, why: str) -> None:
        """Let everything that was put off go on."""
        for execution in list(self.executions.values()):
            execution.resume(why)

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

    def reward(self, trajectory_id: int, reward: float) -> None:
        """What an answered trajectory earned.

        It is recorded; it is learned from unless it comes twice, or `MAX_UNREWARDED` others were
        answered since.
        """
        self.check_reward(trajectory_id, reward)
        self._trace.write(
            records.Rewarded(t_s=self.now_s(), trajectory_id=trajectory_id, reward=reward)
        )
        group, weight_version = self._answered.pop(trajectory_id, (None, NO_VERSION))
        if group is None:
            return
        due = group.size - group.extended_from  # the ones before were all rewarded
        self._reward_rows.append(
            (trajectory_id, group.group_id, group.prompt.key, due, reward, weight_version)
        )
        if group.group_id in self.groups:
            self._board.count_reward(group.row, reward)

    def check_reward(self, trajectory_id: int, reward: float) -> None:
        """Raise `InvalidInputError` unless it can be one."""
        if not 0 <= trajectory_id < self._next_id:
            raise InvalidInputError(f"there is no trajectory {trajectory_id} to reward")
        if not math.isfinite(reward):
            raise InvalidInputError(
                f"the reward of trajectory {trajectory_id}{self._of_prompt(trajectory_id)} is "
                f"{reward}; valid: a finite number"
            )

    def observation(self, tick: int, trainer: TrainerSignal, learning: bool = True) -> Observation:
        """The snapshot for one decision.

        What ended and what was rewarded is shown once: to whoever is `learning`.
        """
        ended = list(self._ended_rows) if learning else []
        rewards = list(self._reward_rows) if learning else []
        if learning:
            self._ended_rows.clear()
            self._reward_rows.clear()
        running = (
            (self._entries[trajectory_id].row, execution)
            for trajectory_id, execution in self.executions.items()
            if execution.attempt is not None
        )
        trajectories, groups = self._board.tables(running)
        return Observation(
            now_s=self.now_s(),
            tick=tick,
            trainer=trainer,
            trajectories=trajectories,
            groups=groups,
            replicas=replica_table(self.fleet, self._clock()),
            ended=ended_table(ended),
            rewarded=reward_table(rewards),
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
        moves, deferrals = self._board.update(entry.row, execution, now_s)
        self._totals["moves"] += moves
        self._totals["deferrals"] += deferrals
        self._trace.write(
            records.PhaseChanged(
                t_s=now_s,
                trajectory_id=trajectory_id,
                old=_PHASES[old],
                new=_PHASES[execution.phase],
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
        self.inflight[attempt.replica] += 1
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
        self.inflight[attempt.replica] -= 1
        self.attempt_ends[end.reason.value] += 1
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
                drafted_at=end.drafted_at,
                accepted_at=end.accepted_at,
            )
        )

    # The rest is bookkeeping

    def _queue(
        self,
        group: GroupState,
        slot: int,
        replaces: Execution | None,
        max_new_tokens: int | None = None,
        payload: Payload | None = None,
    ) -> Execution:
        trajectory_id, now_s = self._next_id, self.now_s()
        self._next_id += 1
        if replaces is not None and (payload := replaces.spec.payload) is not None:
            payload.renew()
            max_new_tokens = replaces.spec.max_new_tokens
        max_new_tokens = group.max_new_tokens if max_new_tokens is None else max_new_tokens
        prompt_token_ids = list(group.prompt.token_ids)
        before = None if replaces is None else self._entries[replaces.spec.trajectory_id]
        row = self._board.add_trajectory(
            trajectory_id,
            group.group_id,
            len(prompt_token_ids) if payload is None else payload.prompt_tokens,
            max_new_tokens,
            restarts=0 if before is None else self._board.restarts(before.row) + 1,
            now_s=now_s,
        )
        redraw = 0 if replaces is None else replaces.spec.trajectory_id + 1
        execution = Execution(
            spec=TrajectorySpec(
                trajectory_id=trajectory_id,
                prompt_token_ids=prompt_token_ids,
                max_new_tokens=max_new_tokens,
                sampling=group.sampling_of(slot, redraw),
                prompt_key=group.prompt.key,
                group_id=group.group_id,
                payload=payload,
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

    def _of_prompt(self, trajectory_id: int) -> str:
        """For a person."""
        group, _ = self._answered.get(trajectory_id, (None, NO_VERSION))
        return "" if group is None else f" of prompt {group.prompt.prompt_id!r}"

    def _ended(self, execution: Execution, entry: _Entry, now_s: float) -> None:
        disposition, group = execution.disposition, entry.group
        assert disposition is not None
        trajectory_id = execution.spec.trajectory_id
        del self.executions[trajectory_id]
        self._totals["ended"] += 1
        self._dispositions[disposition.value] += 1
        censored = disposition is not Disposition.FINISHED
        self._ended_rows.append(ended_row(execution, group, censored))
        self._trace.write(
            records.TrajectoryEnded(
                t_s=now_s,
                trajectory_id=trajectory_id,
                group_id=group.group_id,
                slot=entry.slot,
                disposition=disposition.value,
                correctness=_CLASSES[execution.correctness],
                weight=execution.weight,
                generated_tokens=len(execution.tokens),
                segments=[
                    (s.weight_version, s.replica, s.start, s.end) for s in execution.segments
                ],
                moves=execution.moves,
                deferred=execution.deferrals,
            )
        )
        if disposition in REPLACED:
            group.slots[entry.slot] = self._queue(group, entry.slot, replaces=execution)
            self._board.drop_trajectory(self._entries.pop(trajectory_id).row)
            return
        if disposition.is_answer:
            self._totals["answered"] += 1
            group.answered += 1
            self._board.count_answer(group.row)
            if group.complete and self.executions:
                self.on_complete()
            self._answered[trajectory_id] = (group, oldest_version(execution))
            if len(self._answered) > MAX_UNREWARDED:
                del self._answered[next(iter(self._answered))]
        elif execution.spec.payload is not None:  # its client went away, others may not
            group.size -= 1
            self._board.grow_group(group.row, group.size)
        self.on_end(execution)

    def _forget(self, group: GroupState, complete: bool) -> None:
        del self.groups[group.group_id]
        self._board.drop_group(group.row)
        trajectory_ids = [execution.spec.trajectory_id for execution in group.slots]
        for trajectory_id in trajectory_ids:
            self._board.drop_trajectory(self._entries.pop(trajectory_id).row)
        self._trace.write(
            records.GroupEnded(
                t_s=self.now_s(),
                group_id=group.group_id,
                trajectory_ids=trajectory_ids,
                complete=complete,
            )
        )
