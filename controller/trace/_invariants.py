"""What every trace must fulfil, whatever happened: nothing is lost, doubled or done out of turn."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import singledispatchmethod
from math import isclose

from steersman.controller.trace.records import (
    AttemptEnded,
    AttemptStarted,
    DecisionTaken,
    GroupAdmitted,
    GroupEnded,
    GroupExtended,
    GroupSelected,
    Outcome,
    PhaseChanged,
    Record,
    RunEnded,
    RunStarted,
    TrajectoryEnded,
    TrajectoryQueued,
)
from steersman.estimators.lifecycle import REPLACED, TRANSITIONS, Disposition, Phase
from steersman.mechanisms.contract import OutcomeKind
from steersman.policies.decision import Action, Decision


def check(records: Iterable[Record]) -> list[str]:
    """Everything that cannot be right, one line each; empty for a sound trace."""
    books = Invariants()
    for record in records:
        books.take(record)
    books.close()
    return books.problems


@dataclass(slots=True)
class _Life:
    """One trajectory so far."""

    group_id: int
    phase: Phase = Phase.QUEUED
    tokens: int = 0
    attempt: str = ""
    disposition: Disposition | None = None
    weight: float = 1.0
    told_weight: float = 1.0
    """The one its end tells; the one above is what its coins make it."""


@dataclass(slots=True)
class _Group:
    """An open group so far."""

    size: int
    prompt_tokens: int
    answered: int = 0
    selected: bool = False


@dataclass
class Invariants:
    """The check while it goes on: `take` each record, then `close`, then read `problems`."""

    problems: list[str] = field(default_factory=list)
    lives: dict[int, _Life] = field(default_factory=dict)
    groups: dict[int, _Group] = field(default_factory=dict)
    attempts: set[str] = field(default_factory=set)
    orders: dict[tuple[int, int, str], Decision] = field(default_factory=dict)
    successors: set[int] = field(default_factory=set)
    started: bool = False
    ended: bool = False

    @singledispatchmethod
    def take(self, record: Record) -> None:
        """Records of other kinds say nothing about the invariants."""

    @take.register
    def _(self, record: RunStarted) -> None:
        self.started = True

    @take.register
    def _(self, record: RunEnded) -> None:
        self.ended = True

    @take.register
    def _(self, record: GroupAdmitted) -> None:
        self._must(record.group_id not in self.groups, record.group_id, "admitted twice", "group")
        self.groups[record.group_id] = _Group(record.size, record.prompt_tokens)

    @take.register
    def _(self, record: TrajectoryQueued) -> None:
        name = record.trajectory_id
        self._must(name not in self.lives, name, "queued twice")
        self._must(record.group_id in self.groups, name, "belongs to no admitted group")
        if record.replaces >= 0:
            former = self.lives.get(record.replaces)
            replaced = former is not None and former.disposition in REPLACED
            self._must(replaced, name, f"replaces {record.replaces}, which was not taken away")
            self.successors.add(record.replaces)
        self.lives[name] = _Life(record.group_id)

    @take.register
    def _(self, record: PhaseChanged) -> None:
        if (life := self._alive(record.trajectory_id, "changed its phase")) is None:
            return
        name, old, new = record.trajectory_id, Phase[record.old], Phase[record.new]
        self._must(old is life.phase, name, f"left {old.name} while it was {life.phase.name}")
        self._must(new in TRANSITIONS[old], name, f"cannot go from {old.name} to {new.name}")
        if new in (Phase.QUEUED, Phase.PARKED, Phase.ENDED):
            self._must(not life.attempt, name, f"is {new.name} while {life.attempt} runs")
        life.phase = new

    @take.register
    def _(self, record: AttemptStarted) -> None:
        if (life := self._alive(record.trajectory_id, "was submitted")) is None:
            return
        name, group = record.trajectory_id, self.groups.get(life.group_id)
        self._must(record.attempt_id not in self.attempts, name, f"reused {record.attempt_id}")
        self._must(not life.attempt, name, f"runs twice: {life.attempt}, {record.attempt_id}")
        known = life.tokens + (group.prompt_tokens if group else 0)
        self._must(
            record.prefix_tokens == known,
            name,
            f"was submitted with {record.prefix_tokens} tokens, but {known} are known",
        )
        self.attempts.add(record.attempt_id)
        life.attempt = record.attempt_id

    @take.register
    def _(self, record: AttemptEnded) -> None:
        if (life := self._alive(record.trajectory_id, "had an attempt end")) is None:
            return
        running = life.attempt == record.attempt_id
        self._must(running, record.trajectory_id, f"ended {record.attempt_id}, which did not run")
        life.attempt = ""
        life.tokens += record.tokens

    @take.register
    def _(self, record: TrajectoryEnded) -> None:
        if (life := self._alive(record.trajectory_id, "ended again")) is None:
            return
        name, told = record.trajectory_id, record.generated_tokens
        self._must(life.phase is Phase.ENDED, name, f"ended while it was {life.phase.name}")
        self._must(told == life.tokens, name, f"has {told} tokens; its attempts {life.tokens}")
        at = 0
        for _, _, start, end in record.segments:
            self._must(start == at, name, f"has segments that do not join at token {at}")
            at = end
        self._must(at == told, name, f"has segments up to {at} of {told} tokens")
        life.disposition = Disposition(record.disposition)
        life.told_weight = record.weight
        if life.disposition.is_answer and (group := self.groups.get(life.group_id)):
            group.answered += 1

    @take.register
    def _(self, record: GroupExtended) -> None:
        name, group = record.group_id, self.groups.get(record.group_id)
        if group is None:
            self._must(False, name, "was extended, but is not open", "group")
            return
        whole = f"was extended with {group.answered} of {group.size} answers"
        self._must(group.answered == group.size, name, whole, "group")
        grown = f"was extended from {group.size} to {record.size}"
        self._must(record.size > group.size, name, grown, "group")
        group.size = record.size

    @take.register
    def _(self, record: GroupSelected) -> None:
        name, group = record.group_id, self.groups.get(record.group_id)
        if group is None:
            self._must(False, name, "was selected, but is not open", "group")
            return
        self._must(not group.selected, name, "was selected twice", "group")
        trained = f"has {record.trained} of {group.size} samples to train on"
        self._must(record.trained <= group.size, name, trained, "group")
        dropped = f"is filtered, and {record.trained} samples of it are to be trained on"
        self._must(record.accepted or not record.trained, name, dropped, "group")
        group.selected = True

    @take.register
    def _(self, record: GroupEnded) -> None:
        name, group = record.group_id, self.groups.get(record.group_id)
        if group is None:
            self._must(False, name, "ended, but is not open", "group")
            return
        if record.complete:
            answers = [self._is_answered(i) for i in record.trajectory_ids]
            whole = len(answers) == group.size and all(answers)
            self._must(whole, name, f"has {sum(answers)} of {group.size} answers", "group")
        del self.groups[name]

    @take.register
    def _(self, record: DecisionTaken) -> None:
        if record.enforced:
            d = record.decision
            self.orders[record.tick, d.trajectory_id, d.action.value] = d

    @take.register
    def _(self, record: Outcome) -> None:
        order = (record.tick, record.trajectory_id, record.action)
        text = f"{record.action} in tick {record.tick} happened without a decision"
        decision = self.orders.pop(order, None)
        self._must(decision is not None, record.trajectory_id, text)
        life = self.lives.get(record.trajectory_id)
        if decision is not None and life is not None and record.outcome == OutcomeKind.APPLIED:
            life.weight *= _factor(decision)

    def close(self) -> None:
        """What can only be said at the end."""
        if self.started and not self.ended:
            self.problems.append("the run has no end: it was killed, or it still runs")
        for name, life in self.lives.items():
            self._must(life.disposition is not None, name, f"never ended; it is {life.phase.name}")
            told = life.told_weight
            fair = life.disposition is None or isclose(told, life.weight, rel_tol=1e-9)
            self._must(fair, name, f"weighs {told:g}; its coins make it {life.weight:g}")
            if life.disposition in REPLACED:
                self._must(name in self.successors, name, "was taken away and never replaced")

    def _is_answered(self, trajectory_id: int) -> bool:
        life = self.lives.get(trajectory_id)
        return life is not None and life.disposition is not None and life.disposition.is_answer

    def _alive(self, trajectory_id: int, what: str) -> _Life | None:
        life = self.lives.get(trajectory_id)
        if life is None:
            self._must(False, trajectory_id, f"{what}, but was never queued")
        elif life.disposition is not None:
            self._must(False, trajectory_id, f"{what} after its end")
            return None
        return life

    def _must(self, holds: bool, name: int, problem: str, what: str = "trajectory") -> None:
        if not holds:
            self.problems.append(f"{what} {name} {problem}")


def _factor(decision: Decision) -> float:
    """By what carrying it out multiplies the weight."""
    if decision.action is Action.CONTINUE:
        return 1.0 / decision.propensity
    return 0.0 if decision.action is Action.STOP and decision.propensity < 1 else 1.0
