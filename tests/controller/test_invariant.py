"""Whatever happens in whatever order, each trajectory ends exactly once, with the right tokens."""

from collections import Counter
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import Phase as Stage
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.fake_fleet import EOS, FakeFleet, reference

from steersman.controller.groups import GroupState
from steersman.controller.ledger import Ledger
from steersman.controller.loop import load_mechanisms
from steersman.controller.results import Prompt
from steersman.controller.trace import reader, records
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import TrainerSignal
from steersman.mechanisms.execution import Execution, Intent, ToEnd, ToParking, ToReplica
from steersman.mechanisms.fleet import AttemptEnd, EndReason, Sampling
from steersman.policies.decision import Action, Decision

REPLICAS = 3
SAMPLING = Sampling(stop_token_ids=(EOS,))
CAP = 24
MECHANISMS = load_mechanisms()

replicas = st.sampled_from([f"r{i}" for i in range(REPLICAS)])
draws = st.integers(0, 10**6)


class RolloutMachine(RuleBasedStateMachine):
    """Random commands, engine progress, aborts, deaths and weight pushes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = FakeFleet(REPLICAS)
        self.trace = TraceWriter(None)
        self.now_s = 0.0
        self.cuts = self.tick = 0
        self.ledger = Ledger(self.fleet, self.trace, self.clock, "test")
        self.admitted: dict[int, tuple[Prompt, int]] = {}
        self.delivered: Counter[int] = Counter()

    def clock(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def pick(self, draw: int) -> Execution | None:
        """Some unfinished trajectory; mostly one that has written something and still runs."""
        unfinished = [self.ledger.executions[i] for i in sorted(self.ledger.executions)]
        lively = [e for e in unfinished if e.phase is Phase.RUNNING and e.generated_tokens]
        choice = lively if lively and draw % 4 else unfinished
        return choice[draw % len(choice)] if choice else None

    @rule(size=st.integers(1, 4), prompt=st.lists(st.integers(3, 49), min_size=1, max_size=4))
    def admit(self, size: int, prompt: list[int]) -> None:
        group = self.ledger.admit(Prompt(f"p{prompt}", prompt), size, CAP, SAMPLING, step=0)
        self.admitted[group.group_id] = (group.prompt, size)

    @rule(replica=replicas)
    def place_all(self, replica: str) -> None:
        for execution in list(self.ledger.executions.values()):
            execution.place(replica)

    @initialize(prompt=st.lists(st.integers(3, 49), min_size=1, max_size=3))
    def begin(self, prompt: list[int]) -> None:
        self.admit(3, prompt)
        self.place_all("r0")
        self.write(2)

    @rule(draw=draws, replica=replicas)
    def migrate(self, draw: int, replica: str) -> None:
        if execution := self.pick(draw):
            self.cuts += execution.leave(ToReplica(replica), "test")

    @rule(draw=draws)
    def defer(self, draw: int) -> None:
        if execution := self.pick(draw):
            execution.leave(ToParking(), "test")

    @rule(draw=draws)
    def resume(self, draw: int) -> None:
        if execution := self.pick(draw):
            execution.resume("test")

    @rule(draw=draws, disposition=st.sampled_from([Disposition.RESTARTED, Disposition.EXPIRED]))
    def replace(self, draw: int, disposition: Disposition) -> None:
        if execution := self.pick(draw):
            execution.leave(ToEnd(disposition, CorrectnessClass.EMPIRICAL), "test")

    @rule(draw=draws)
    def stop(self, draw: int) -> None:
        if execution := self.pick(draw):
            execution.leave(ToEnd(Disposition.STOPPED, CorrectnessClass.EMPIRICAL), "test")

    @rule(draw=draws, action=st.sampled_from([Action.STOP, Action.CONTINUE]))
    def throw(self, draw: int, action: Action) -> None:
        """A coin of probability a quarter, told and carried out as the loop does it."""
        if execution := self.pick(draw):
            self.tick += 1
            of = {"t_s": self.clock(), "tick": self.tick}
            name = execution.spec.trajectory_id
            decision = Decision(name, action, "test", "", propensity=0.25)
            told = records.DecisionTaken(**of, decision=decision, enforced=True, mode="enforcing")
            self.trace.write(told)
            outcome = MECHANISMS[action].apply(execution, decision)
            self.trace.write(
                records.Outcome(**of, trajectory_id=name, action=action, outcome=outcome)
            )

    @rule(tokens=st.integers(1, 5))
    def write(self, tokens: int) -> None:
        for replica in ("r0", "r1", "r2"):
            self.fleet.advance(replica, tokens)

    @rule(replica=replicas)
    def confirm(self, replica: str) -> None:
        self.fleet.confirm(replica)

    @rule()
    def push_weights(self) -> None:
        self.fleet.weight_version += 1

    @precondition(lambda self: self.cuts >= 2)
    @rule(replica=st.sampled_from(["r0", "r1"]))
    def kill(self, replica: str) -> None:
        self.fleet.kill(replica)

    @rule(count=st.integers(1, 3))
    def extend(self, count: int) -> None:
        """More samples for a group that is complete, before it is delivered."""
        group = next((g for g in self.ledger.groups.values() if g.complete), None)
        if group is not None:
            self.ledger.grow(group, count)
            prompt, size = self.admitted[group.group_id]
            self.admitted[group.group_id] = (prompt, size + count)

    @rule()
    def deliver(self) -> None:
        for group in list(self.ledger.groups.values()):
            if group.complete:
                self.check_delivery(group.group_id)

    def check_delivery(self, group_id: int) -> None:
        group = self.ledger.deliver(self.ledger.groups[group_id], 0, self.fleet.weight_version)
        prompt, size = self.admitted[group_id]
        self.delivered[group_id] += 1
        assert [t.slot for t in group.trajectories] == list(range(size))
        for trajectory in group.trajectories:
            right = reference(prompt.token_ids, CAP)
            if trajectory.disposition is Disposition.STOPPED:
                right = right[: len(trajectory.token_ids)]
            assert trajectory.token_ids == right
            assert trajectory.logprobs == [-float(token) for token in right]
            covered = [i for s in trajectory.segments for i in range(s.start, s.end)]
            assert covered == list(range(len(right)))
            versions = {s.weight_version for s in trajectory.segments}
            if len(versions) > 1:
                assert trajectory.correctness >= CorrectnessClass.CORRECTED

    @invariant()
    def the_books_balance(self) -> None:
        counts = self.ledger.counts()
        assert counts.unfinished == len(self.ledger.executions)
        assert counts.ended == sum(counts.dispositions.values())
        phases = [e.phase for e in self.ledger.executions.values()]
        assert self.ledger.waiting == phases.count(Phase.QUEUED)
        observation = self.ledger.observation(0, TrainerSignal())
        unfinished = observation.trajectories.phase != Phase.ENDED
        assert unfinished.sum() == counts.unfinished

    def teardown(self) -> None:
        """Let everything end, then look at the whole."""
        for _ in range(200):
            for execution in list(self.ledger.executions.values()):
                execution.resume("teardown")
                execution.place("r2")
            for replica in ("r0", "r1", "r2"):
                self.fleet.advance(replica, CAP)
                self.fleet.confirm(replica)
            self.deliver()
        assert not self.ledger.groups
        assert self.delivered == Counter(dict.fromkeys(self.admitted, 1))
        assert reader.check(self.trace.records) == []


SETTINGS = settings(max_examples=200, stateful_step_count=50, deadline=None, derandomize=True)
RolloutMachine.TestCase.settings = SETTINGS
TestNothingIsLostOrDoubled = RolloutMachine.TestCase


def forget_a_token(self: Execution, replica: str, end: AttemptEnd) -> None:
    """A mutant: an aborted attempt's last token is kept as another one."""
    right(self, replica, end)
    if end.reason is EndReason.ABORT and end.tokens:
        self.tokens[-1] = EOS + 1 if self.tokens[-1] != EOS + 1 else EOS + 2


def strand(self: Execution, intent: Intent, end: AttemptEnd) -> None:
    """A mutant: whatever was intended after leaving is forgotten."""


def weigh_twice(self: Execution, factor: float) -> None:
    """A mutant: a coin counts twice."""
    self.weight *= factor**2


def end_twice(self: Execution, disposition: Disposition, why: str) -> None:
    """A mutant: the end is announced twice."""
    self.disposition = disposition
    self._enter(Phase.ENDED, why)
    self.listener.phase_changed(self, Phase.RUNNING, why)


def grow_late(self: Ledger, group: GroupState, count: int) -> None:
    """A mutant: the group is complete again as soon as all but one of the new ones are."""
    grow(self, group, count)
    group.answered += 1


right = Execution._absorb
grow = Ledger.grow


@pytest.mark.parametrize(
    ("method", "mutant"),
    [
        (Execution._absorb, forget_a_token),
        (Execution._follow, strand),
        (Execution._end, end_twice),
        (Execution.weigh, weigh_twice),
        (Ledger.grow, grow_late),
    ],
)
def test_the_machine_finds_a_broken_execution(
    method: Callable[..., None], mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Ledger if method is grow else Execution
    monkeypatch.setattr(owner, method.__name__, mutant)
    first_failure = settings(
        SETTINGS, report_multiple_bugs=False, phases=[Stage.generate], print_blob=False
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(RolloutMachine, settings=first_failure)
