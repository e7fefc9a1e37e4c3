"""The world of a replay: who stands where, and what a decision does to it.

The same lifecycle as a live run's (`estimators.lifecycle.TRANSITIONS`), one array operation for
many trajectories at a time.  Time passes only in the simulated core; a migrated trajectory is in
LEAVING for the hand-over and then arrives at its target.  Row numbers are the core's.

A trajectory that is restarted, or expires, ends without being an answer, and a fresh one waits in
its slot: every group ends with exactly its size of answers.
"""

from collections.abc import Sequence

import numpy as np

from steersman.controller.replay import _world_tables as tables
from steersman.controller.replay._books import REPLACED
from steersman.controller.replay._drafting import Drafting
from steersman.controller.replay._hands import ON_A_REPLICA, Hands
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.redraw import Redraw
from steersman.controller.replay.workload import Asked
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Bools, Ints, Observation, TrainerSignal
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import EventKind, Events
from steersman.policies.decision import Action, Decision, DraftDecision


class World:
    """All trajectories admitted so far, and the fleet they run on.

    `redraw` says what fresh samples write; without it, as much as those they replace, in one turn.
    """

    def __init__(self, plan: FleetPlan, redraw: Redraw | None = None) -> None:
        self.plan, self.core = plan, SimulatedCore()
        for spec in plan.specs():
            self.core.add_replica(spec)
        self.present = np.ones(plan.replicas, dtype=np.bool_)
        """(r,) has joined the fleet."""
        self.present[list(plan.absent)] = False
        self.drafting = Drafting(self.core, plan)
        self._hands = Hands(plan, self.core, redraw)
        self.books, self.intervals = self._hands.books, self._hands.intervals
        self.ints, self.floats = self.books.ints, self.books.floats
        self._row_of = {name: row for row, name in enumerate(plan.names)}
        self.forgiven = np.zeros(plan.replicas, dtype=np.int64)
        """(r,) preemptions by weight updates."""
        self._tick = 0

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.core.now_s

    @property
    def weight_version(self) -> int:
        """That the replicas hold."""
        return self._hands.weight_version

    @property
    def waiting(self) -> bool:
        """Whether anything waits for a placement."""
        return bool((self.ints["phase"] == Phase.QUEUED).any())

    @property
    def running(self) -> bool:
        """Whether anything runs, or is on its way to run."""
        return bool(np.isin(self.ints["phase"], ON_A_REPLICA).any())

    @property
    def alive(self) -> Bools:
        """(r,) replicas that have joined and not died."""
        return np.asarray(self.core.state().alive.astype(np.bool_) & self.present)

    @property
    def open_groups(self) -> int:
        """Groups that are not complete."""
        return int(self.books.is_open.sum())

    @property
    def complete_groups(self) -> int:
        """Groups all of whose trajectories have ended."""
        return self.books.groups - self.open_groups

    def admit(self, asked: Asked) -> Ints:
        """Queue a step's trajectories; returns their rows."""
        groups = self.books.add_groups(asked.prompt_key, asked.step)
        return self.extend(groups[asked.group_row], asked)

    def extend(self, groups: Ints, samples: Asked) -> Ints:
        """Queue further samples, each of one of `groups` (n,), complete or not; returns their rows.

        The samples' own groups are not looked at.
        """
        index = self.books.grow_groups(groups)
        return self._hands.add(groups, index, np.zeros_like(index), samples)

    def resume_parked(self, max_lag: int | None = None) -> None:
        """A new step begins: what was put off waits again, or expires beyond the lag bound."""
        self._hands.expire((Phase.PARKED,), max_lag)
        parked = np.flatnonzero(self.ints["phase"] == Phase.PARKED)
        self.books.queue(parked, self.now_s)

    def new_weights(self, weight_version: int, max_lag: int | None = None) -> None:
        """Every replica's cache is void; what runs goes on under the new weights.

        What would then be beyond the lag bound expires, unless it is parked: that is seen to when
        it is resumed.
        """
        self._hands.weight_version = weight_version
        before = self.core.state().preemptions
        for replica in range(self.plan.replicas):
            self.core.new_weights(replica)
        # an engine's counter tells of memory; what a weight update preempts does not count
        self.forgiven += self.core.state().preemptions - before
        self._hands.expire((Phase.QUEUED, *ON_A_REPLICA), max_lag)

    def interrupt(self) -> None:
        """All that runs leaves its replica with what it wrote, and waits."""
        rows = np.flatnonzero(np.isin(self.ints["phase"], ON_A_REPLICA))
        self._hands.withdraw(rows, "interrupted")
        self.books.queue(rows, self.now_s)

    def kill(self, replica: int) -> None:
        """It dies; what was there waits for another."""
        self.core.kill(replica)
        self.advance(self.now_s)

    def join(self, replica: int) -> None:
        """One that was absent is there."""
        self.present[replica] = True

    def advance(self, until_s: float, stop_on: Sequence[EventKind] = ()) -> Events:
        """Let time pass, and take what happened into the books."""
        events = self.core.advance(until_s, stop_on)
        done = events.kind == EventKind.FINISHED
        self._hands.finish(events.trajectory[done], events.time_s[done])
        np.add.at(self.ints["turns"], events.trajectory[events.kind == EventKind.TURN_ENDED], 1)
        lost = events.trajectory[events.kind == EventKind.LOST]
        if len(lost):
            self.books.wrote(lost, self.core.generated_tokens(lost))
            self._hands.close(lost, "lost")
            self.books.queue(lost, self.now_s)
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
        is_open = self.books.is_open
        shown = is_open[self.ints["group"]] & ~np.isin(self.ints["ending"], REPLACED)
        rows = np.flatnonzero(shown)
        run = rows[np.isin(self.ints["phase"][rows], ON_A_REPLICA)]
        self.books.wrote(run, self.core.generated_tokens(run))
        ended, self._hands.ended = np.concatenate([*self._hands.ended, rows[:0]]), []
        answers = ended[~np.isin(self.ints["ending"][ended], REPLACED)]
        return Observation(
            now_s=self.now_s,
            tick=self._tick,
            trainer=trainer,
            trajectories=tables.trajectory_table(self.books, rows, np.cumsum(is_open) - 1),
            groups=tables.group_table(self.books, np.flatnonzero(is_open)),
            replicas=tables.replica_table(
                self.core,
                self.plan,
                self.drafting,
                self.present,
                self.weight_version,
                self.forgiven,
            ),
            ended=tables.ended_table(self.books, ended),
            rewarded=tables.reward_table(self.books, answers),
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

    def draft(self, decisions: Sequence[DraftDecision]) -> int:
        """Carry them out; returns how many were."""
        alive = self.alive
        told = {
            row: d.draft_tokens
            for d in decisions
            if (row := self._row_of.get(d.replica, NO_ROW)) != NO_ROW
            and alive[row]
            and 0 <= d.draft_tokens <= self.drafting.most
        }
        if told:
            self.drafting.set(np.array(list(told)), np.array(list(told.values())))
        return len(told)

    def _act(self, action: Action, rows: Ints, targets: Ints) -> int:
        phase = self.ints["phase"][rows]
        reachable = (targets >= 0) & self.alive[targets]
        if action is Action.PLACE:
            fits = (phase == Phase.QUEUED) & reachable
            self._hands.place(rows[fits], targets[fits])
        elif action in (Action.MIGRATE, Action.ISOLATE):
            fits = (phase == Phase.RUNNING) & reachable
            self._hands.migrate(rows[fits], targets[fits])
        elif action is Action.RESTART:
            fits = phase == Phase.RUNNING
            self._hands.renew(rows[fits], "restarted")
        elif action is Action.DEFER:
            fits = np.isin(phase, (Phase.QUEUED, Phase.RUNNING))
            self._hands.park(rows[fits])
        elif action is Action.CONTINUE:  # a replay has no weights: nothing changes
            fits = np.isin(phase, (Phase.QUEUED, Phase.RUNNING))
        elif action is Action.STOP:
            fits = np.isin(phase, (Phase.QUEUED, Phase.RUNNING))
            self._hands.stop(rows[fits])
        else:
            fits = np.zeros(len(rows), dtype=np.bool_)
        return int(fits.sum())
