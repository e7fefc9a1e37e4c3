"""The books of a replay, as arrays: who stands where, and what a decision does to it.

The same lifecycle as a live run's (`estimators.lifecycle.TRANSITIONS`), one array operation for
many trajectories at a time.  Time passes only in the simulated core; a migrated trajectory is in
LEAVING for the hand-over and then arrives at its target.  Row numbers are the core's.
"""

from collections.abc import Sequence

import numpy as np

from steersman.controller.replay.fleet import FleetPlan, replica_table
from steersman.controller.replay.intervals import Intervals
from steersman.controller.replay.workload import Asked
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    NO_ROW,
    NO_VERSION,
    EndedTable,
    GroupTable,
    Ints,
    Observation,
    RewardTable,
    TrainerSignal,
    TrajectoryTable,
)
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import EventKind, Events, Trajectories
from steersman.policies.decision import Action, Decision

INT_COLUMNS = (
    "group", "phase", "replica", "target", "prompt_tokens", "length", "cap", "generated", "moves",
    "deferred", "restarts", "turns", "version",
)  # fmt: skip
FLOAT_COLUMNS = ("queued_s", "placed_s", "moved_s", "arrives_s", "reward")


class World:
    """All trajectories admitted so far, and the fleet they run on."""

    def __init__(self, plan: FleetPlan) -> None:
        self.plan, self.core, self.intervals = plan, SimulatedCore(), Intervals()
        for spec in plan.specs():
            self.core.add_replica(spec)
        self._row_of = {name: row for row, name in enumerate(plan.names)}
        self.ints = {name: np.zeros(0, dtype=np.int64) for name in INT_COLUMNS}
        self.floats = {name: np.zeros(0) for name in FLOAT_COLUMNS}
        self.group_key, self.group_step = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.group_size, self.group_ended = self.group_key.copy(), self.group_key.copy()
        self.weight_version = 0
        self.forgiven = np.zeros(plan.replicas, dtype=np.int64)
        """(r,) preemptions by weight updates."""
        self._ended: list[Ints] = []
        self._tick = 0

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.core.now_s

    @property
    def waiting(self) -> bool:
        """Whether anything waits for a placement."""
        return bool((self.ints["phase"] == Phase.QUEUED).any())

    @property
    def running(self) -> bool:
        """Whether anything runs, or is on its way to run."""
        return bool(np.isin(self.ints["phase"], (Phase.RUNNING, Phase.LEAVING)).any())

    @property
    def open_groups(self) -> int:
        """Groups that are not complete."""
        return int((self.group_ended < self.group_size).sum())

    @property
    def complete_groups(self) -> int:
        """Groups all of whose trajectories have ended."""
        return len(self.group_size) - self.open_groups

    def admit(self, asked: Asked) -> Ints:
        """Queue a step's trajectories; returns their rows."""
        groups, n, old = len(self.group_key), len(asked), self.ints
        group = groups + asked.group_row
        self.group_key = np.concatenate((self.group_key, asked.prompt_key))
        size = np.bincount(asked.group_row, minlength=len(asked.prompt_key))
        self.group_size = np.concatenate((self.group_size, size))
        self.group_ended = np.concatenate((self.group_ended, np.zeros_like(size)))
        self.group_step = np.concatenate((self.group_step, np.full(len(size), asked.step)))
        none = np.full(n, NO_ROW)
        new = {
            "group": group, "phase": np.full(n, Phase.QUEUED), "replica": none, "target": none,
            "prompt_tokens": asked.prompt_tokens, "length": asked.length,
            "cap": asked.max_new_tokens, "version": np.full(n, NO_VERSION),
        }  # fmt: skip
        zeros = np.zeros(n, dtype=np.int64)
        self.ints = {c: np.concatenate((old[c], new.get(c, zeros))) for c in INT_COLUMNS}
        times = {
            "queued_s": np.full(n, self.now_s), "placed_s": np.full(n, np.nan),
            "moved_s": np.full(n, -np.inf), "arrives_s": np.full(n, np.inf), "reward": asked.reward,
        }  # fmt: skip
        self.floats = {c: np.concatenate((self.floats[c], times[c])) for c in FLOAT_COLUMNS}
        turns = asked.turns
        return self.core.add(
            Trajectories(
                group=group,
                prompt_tokens=asked.prompt_tokens.astype(np.float64),
                encode_s=np.asarray(self.plan.image_encode_s * asked.images, dtype=np.float64),
                turns=turns.count,
                turn_tokens=turns.tokens,
                wait_s=turns.wait_s,
                extra_tokens=turns.extra_tokens,
            )
        )

    def resume_parked(self) -> None:
        """A new step begins: what was put off waits again."""
        self._queue(np.flatnonzero(self.ints["phase"] == Phase.PARKED))

    def new_weights(self, weight_version: int) -> None:
        """Every replica's cache is void; what runs goes on under the new weights."""
        self.weight_version = weight_version
        before = self.core.state().preemptions
        for replica in range(self.plan.replicas):
            self.core.new_weights(replica)
        # an engine's counter tells of memory; what a weight update preempts does not count
        self.forgiven += self.core.state().preemptions - before

    def advance(self, until_s: float, stop_on: Sequence[EventKind] = ()) -> Events:
        """Let time pass, and take what happened into the books."""
        events = self.core.advance(until_s, stop_on)
        done = events.kind == EventKind.FINISHED
        self._finish(events.trajectory[done], events.time_s[done])
        np.add.at(self.ints["turns"], events.trajectory[events.kind == EventKind.TURN_ENDED], 1)
        lost = events.trajectory[events.kind == EventKind.LOST]
        if len(lost):
            written = np.floor(self.core.generated_tokens(lost)).astype(np.int64)
            self._close(lost, written, self.now_s, "lost")
            self._queue(lost)
        arrived = np.flatnonzero(
            (self.ints["phase"] == Phase.LEAVING) & (self.floats["arrives_s"] <= self.now_s)
        )
        self.ints["phase"][arrived] = Phase.RUNNING
        self.ints["replica"][arrived] = self.ints["target"][arrived]
        self.ints["target"][arrived] = NO_ROW
        self.floats["placed_s"][arrived] = self.floats["arrives_s"][arrived]
        return events

    def observe(self, trainer: TrainerSignal) -> Observation:
        """The snapshot for one decision."""
        self._tick += 1
        open_groups = np.flatnonzero(self.group_ended < self.group_size)
        is_open = self.group_ended < self.group_size
        rows = np.flatnonzero(is_open[self.ints["group"]])
        run = rows[np.isin(self.ints["phase"][rows], (Phase.RUNNING, Phase.LEAVING))]
        written = np.floor(self.core.generated_tokens(run)).astype(np.int64)
        self.ints["generated"][run] = np.minimum(written, self.ints["length"][run] - 1)
        ended, self._ended = np.concatenate([*self._ended, rows[:0]]), []
        return Observation(
            now_s=self.now_s,
            tick=self._tick,
            trainer=trainer,
            trajectories=self._trajectories(rows, np.cumsum(is_open) - 1),
            groups=self._groups(open_groups),
            replicas=replica_table(self.core, self.plan, self.weight_version, self.forgiven),
            ended=self._ended_table(ended),
            rewarded=self._rewards(ended),
        )

    def apply(self, decisions: Sequence[Decision]) -> int:
        """Carry them out; returns how many were."""
        by_action: dict[Action, list[Decision]] = {}
        for decision in decisions:
            by_action.setdefault(decision.action, []).append(decision)
        done = 0
        for action, some in by_action.items():
            rows = np.array([d.trajectory_id for d in some])
            targets = np.array([self._row_of.get(d.replica, NO_ROW) for d in some])
            done += self._act(action, rows, targets)
        return done

    def _act(self, action: Action, rows: Ints, targets: Ints) -> int:
        phase = self.ints["phase"][rows]
        if action is Action.PLACE:
            fits = (phase == Phase.QUEUED) & (targets >= 0)
            self._place(rows[fits], targets[fits])
        elif action in (Action.MIGRATE, Action.ISOLATE):
            fits = (phase == Phase.RUNNING) & (targets >= 0)
            self._migrate(rows[fits], targets[fits])
        elif action is Action.DEFER:
            fits = np.isin(phase, (Phase.QUEUED, Phase.RUNNING))
            self._park(rows[fits])
        elif action is Action.STOP:
            fits = phase == Phase.RUNNING
            self._stop(rows[fits])
        else:
            fits = np.zeros(len(rows), dtype=np.bool_)
        return int(fits.sum())

    def _place(self, rows: Ints, targets: Ints) -> None:
        self.core.submit(rows, targets)
        i, f = self.ints, self.floats
        i["phase"][rows], i["replica"][rows] = Phase.RUNNING, targets
        f["placed_s"][rows] = self.now_s
        i["version"][rows] = np.where(
            i["version"][rows] == NO_VERSION, self.weight_version, i["version"][rows]
        )
        self.intervals.begin(rows, targets, self.now_s, i["generated"][rows])

    def _migrate(self, rows: Ints, targets: Ints) -> None:
        self._withdraw(rows, "migrated")
        arrives_s = self.now_s + self.plan.handover_s
        self.core.submit(rows, targets, at_s=arrives_s)
        i, f = self.ints, self.floats
        i["phase"][rows], i["target"][rows] = Phase.LEAVING, targets
        i["moves"][rows] += 1
        f["moved_s"][rows], f["arrives_s"][rows] = self.now_s, arrives_s
        f["placed_s"][rows] = np.nan
        self.intervals.begin(rows, targets, arrives_s, i["generated"][rows])

    def _park(self, rows: Ints) -> None:
        self._withdraw(rows[self.ints["phase"][rows] == Phase.RUNNING], "deferred")
        self.ints["phase"][rows] = Phase.PARKED
        self.ints["replica"][rows] = NO_ROW
        self.ints["deferred"][rows] += 1
        self.floats["moved_s"][rows] = self.now_s
        self.floats["placed_s"][rows] = np.nan

    def _stop(self, rows: Ints) -> None:
        self._withdraw(rows, "stopped")
        self._end(rows)

    def _withdraw(self, rows: Ints, ending: str) -> None:
        written = np.floor(self.core.abort(rows)).astype(np.int64)
        self.ints["generated"][rows] = np.minimum(written, self.ints["length"][rows] - 1)
        self._close(rows, self.ints["generated"][rows], self.now_s, ending)

    def _finish(self, rows: Ints, time_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        if not len(rows):
            return
        self.ints["generated"][rows] = self.ints["length"][rows]
        capped = self.ints["length"][rows] >= self.ints["cap"][rows]
        for ending, some in (("truncated", capped), ("finished", ~capped)):
            self.intervals.end(rows[some], time_s[some], self.ints["length"][rows[some]], ending)
        self._end(rows)

    def _close(self, rows: Ints, written: Ints, at_s: float, ending: str) -> None:
        self.intervals.end(rows, np.full(len(rows), at_s), written, ending)

    def _end(self, rows: Ints) -> None:
        self.ints["phase"][rows] = Phase.ENDED
        self.ints["replica"][rows] = self.ints["target"][rows] = NO_ROW
        self.floats["placed_s"][rows] = np.nan
        np.add.at(self.group_ended, self.ints["group"][rows], 1)
        self._ended.append(rows)

    def _queue(self, rows: Ints) -> None:
        self.ints["phase"][rows] = Phase.QUEUED
        self.ints["replica"][rows] = self.ints["target"][rows] = NO_ROW
        self.floats["queued_s"][rows] = self.now_s
        self.floats["placed_s"][rows] = np.nan

    def _trajectories(self, rows: Ints, group_row: Ints) -> TrajectoryTable:
        i, f = self.ints, self.floats
        return TrajectoryTable(
            trajectory_id=rows,
            group_row=group_row[i["group"][rows]],
            phase=i["phase"][rows],
            replica_row=i["replica"][rows],
            target_row=i["target"][rows],
            prompt_tokens=i["prompt_tokens"][rows],
            generated_tokens=i["generated"][rows],
            max_new_tokens=i["cap"][rows],
            queued_s=f["queued_s"][rows],
            placed_s=f["placed_s"][rows],
            moved_s=f["moved_s"][rows],
            moves=i["moves"][rows],
            deferred=i["deferred"][rows],
            restarts=i["restarts"][rows],
            turns=i["turns"][rows],
            oldest_weight_version=i["version"][rows],
        )

    def _groups(self, rows: Ints) -> GroupTable:
        none = np.zeros(len(rows), dtype=np.int64)
        return GroupTable(
            group_id=rows,
            prompt_key=self.group_key[rows],
            size=self.group_size[rows],
            ended=self.group_ended[rows],
            step=self.group_step[rows],
            rewarded=none,
            reward_sum=np.zeros(len(rows)),
            reward_low=np.full(len(rows), np.inf),
            reward_high=np.full(len(rows), -np.inf),
            features=np.zeros((len(rows), 0)),
        )

    def _ended_table(self, rows: Ints) -> EndedTable:
        i = self.ints
        whole = (i["generated"][rows] >= i["length"][rows]) & (i["length"][rows] < i["cap"][rows])
        return EndedTable(
            trajectory_id=rows,
            group_id=i["group"][rows],
            prompt_key=self.group_key[i["group"][rows]],
            prompt_tokens=i["prompt_tokens"][rows],
            generated_tokens=i["generated"][rows],
            censored=~whole,
            turns=i["turns"][rows] + whole,
            weight_version=i["version"][rows],
        )

    def _rewards(self, rows: Ints) -> RewardTable:
        """A replay knows a reward as soon as its trajectory has ended."""
        i = self.ints
        known = rows[np.isfinite(self.floats["reward"][rows])]
        return RewardTable(
            trajectory_id=known,
            group_id=i["group"][known],
            prompt_key=self.group_key[i["group"][known]],
            group_size=self.group_size[i["group"][known]],
            reward=self.floats["reward"][known],
            weight_version=i["version"][known],
        )
