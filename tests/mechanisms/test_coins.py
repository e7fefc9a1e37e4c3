"""Stopping by a coin whose spared side is weighted leaves the expectation of every weighted sum."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from support.fake_fleet import EOS, FakeFleet, reference

from steersman.controller import guard as guard_module
from steersman.controller.config import GuardConfig
from steersman.controller.guard import LEAST_SIDE, guard
from steersman.controller.ledger import Ledger
from steersman.controller.loop import load_mechanisms
from steersman.controller.results import Prompt
from steersman.controller.trace.writer import NoTrace
from steersman.estimators.lifecycle import CorrectnessClass, Disposition
from steersman.estimators.observation import Floats, Observation, TrainerSignal
from steersman.mechanisms.contract import OutcomeKind
from steersman.mechanisms.execution import Execution
from steersman.mechanisms.fleet import Sampling
from steersman.policies.decision import Action, Decision

GROUPS, SIZE, CAP = 100, 4, 4
COIN_TICKS = (1, 3)
"""Many have one token left at the second throw, so that their end races with the abort."""
MECHANISMS = load_mechanisms()
PROMPTS = [Prompt(f"p{i}", [3 + i % 40, 3 + i // 40]) for i in range(GROUPS)]
CALM = GuardConfig(move_cooldown_s=0.0, max_moves_per_tick=50)


class Step:
    """One step under two coins per trajectory, while another policy places and moves."""

    def __init__(self, seed: int, low: float, high: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.keep = self.rng.uniform(low, high, GROUPS * SIZE)
        self.variance = np.zeros(GROUPS * SIZE)
        """Of each weight: what the throws added, given what was known before each."""
        self.now_s = 0.0
        fleet = FakeFleet(2, clock=lambda: self.now_s)
        self.ledger = Ledger(fleet, NoTrace(), lambda: self.now_s, "test")
        for prompt in PROMPTS:
            self.ledger.admit(prompt, SIZE, CAP, Sampling(stop_token_ids=(EOS,)), step=0)
        for tick in range(40):
            if not self.ledger.executions:
                break
            self.now_s = float(tick)
            seen = self.ledger.observation(tick, TrainerSignal())
            proposed = self.moves(seen, 0.6 if tick <= COIN_TICKS[-1] else 0.0)
            proposed += self.throws(seen) if tick in COIN_TICKS else []
            for decision in guard(seen, proposed, CALM)[0]:
                self.carry_out(decision)
            for replica in ("r0", "r1"):
                fleet.advance(replica)  # an abort on its way comes too late for this token
                fleet.confirm(replica)
        groups = [self.ledger.deliver(g, 0, 0) for g in list(self.ledger.groups.values())]
        self.answers = [t for group in groups for t in group.trajectories]
        assert [t.trajectory_id for t in self.answers] == list(range(GROUPS * SIZE))
        self.weight = np.array([t.weight for t in self.answers])

    def moves(self, seen: Observation, share: float) -> list[Decision]:
        ids, rng = seen.trajectories.trajectory_id, self.rng
        return [
            Decision(int(ids[row]), action, "mover", "", f"r{rng.integers(2)}")
            for action, rows, often in (
                (Action.PLACE, seen.queued, max(share, 0.5)),
                (Action.MIGRATE, seen.running, share),
            )
            for row in rows[rng.random(len(rows)) < often]
        ]

    def throws(self, seen: Observation) -> list[Decision]:
        ids = seen.trajectories.trajectory_id[np.concatenate((seen.queued, seen.running))]
        coins = []
        for i, keep in zip(ids.tolist(), self.keep[ids].tolist(), strict=True):
            spared = self.rng.random() < keep
            action, share = (Action.CONTINUE, keep) if spared else (Action.STOP, 1 - keep)
            coins.append(Decision(i, action, "coin", "", propensity=share))
        return coins

    def carry_out(self, decision: Decision) -> None:
        execution = self.ledger.executions[decision.trajectory_id]
        weight, keep = execution.weight, self.keep[decision.trajectory_id]
        outcome = MECHANISMS[decision.action].apply(execution, decision)
        if decision.policy == "coin" and outcome is OutcomeKind.APPLIED:
            self.variance[decision.trajectory_id] += weight**2 * (1 - keep) / keep

    def z_score(self, of: Floats, weight: Floats | None = None) -> float:
        """Error of the weighted sum of `of`, in standard deviations."""
        error = (self.weight if weight is None else weight) - 1
        return float((of * error).sum() / np.sqrt((of**2 * self.variance).sum()))


ONES = np.ones(GROUPS * SIZE)


def quantities(seed: int) -> dict[str, Floats]:
    """Anything that does not depend on the coins."""
    rng = np.random.default_rng(seed)
    lengths = [len(reference(prompt.token_ids, CAP)) for prompt in PROMPTS]
    return {
        "number": ONES,
        "length": np.repeat(lengths, SIZE).astype(np.float64),
        "advantage": rng.normal(size=GROUPS * SIZE),
        "heavy tail": np.exp(rng.normal(0.0, 1.0, GROUPS * SIZE)),
    }


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    ends=st.tuples(st.floats(0.15, 0.9), st.floats(0.15, 0.9)).map(sorted),
)
def test_weighted_sums_are_unbiased_whatever_the_keep_probabilities(
    seed: int, ends: list[float]
) -> None:
    step = Step(seed, *ends)
    assert np.isfinite(step.weight).all()
    assert (step.weight > 1).any()
    assert (step.weight == 0).any()
    for name, of in quantities(seed).items():
        assert abs(step.z_score(of)) < 4.5, name


def test_errors_are_those_of_chance_and_only_if_a_natural_end_does_not_undo_a_coin() -> None:
    scores, undone = [], []
    for seed in range(25):
        step = Step(seed, 0.3, 0.7)
        raced = [t.weight == 0 and t.disposition is not Disposition.STOPPED for t in step.answers]
        scores.append(step.z_score(ONES))
        undone.append(step.z_score(ONES, np.where(raced, 1.0, step.weight)))
    assert abs(np.mean(scores)) < 3 / 5  # standard errors of a mean of 25
    assert 0.6 < np.std(scores) < 1.4
    assert np.mean(undone) > 5 / 5


def test_who_forgets_the_weight_of_the_spared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful = type(MECHANISMS[Action.CONTINUE])
    monkeypatch.setattr(forgetful, "apply", lambda *_: OutcomeKind.APPLIED)
    assert Step(1, 0.3, 0.7).z_score(ONES) < -10


def test_who_hears_the_spared_side_after_all_moves_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = [
        tuple(a for a in equals if a is not Action.CONTINUE) for equals in guard_module.PRECEDENCE
    ]
    monkeypatch.setattr(guard_module, "PRECEDENCE", (*ranks, (Action.CONTINUE,)))
    assert Step(1, 0.3, 0.7).z_score(ONES) < -5


def execution(**values: Any) -> Execution:
    ledger = Ledger(FakeFleet(1), NoTrace(), lambda: 0.0, "test")
    group = ledger.admit(PROMPTS[0], 1, CAP, Sampling(), step=0)
    for name, value in values.items():
        setattr(group.slots[0], name, value)
    return group.slots[0]


def said(action: Action, propensity: float) -> Decision:
    return Decision(0, action, "test", "", propensity=propensity)


def test_the_rarest_coin_makes_no_weight_above_20_and_throws_multiply() -> None:
    one = execution()
    for expected in (1 / LEAST_SIDE, 1 / LEAST_SIDE**2):
        MECHANISMS[Action.CONTINUE].apply(one, said(Action.CONTINUE, LEAST_SIDE))
        assert one.weight == pytest.approx(expected)
    assert one.correctness is CorrectnessClass.MODIFIED


def test_a_coin_never_makes_a_class_better() -> None:
    for action in (Action.CONTINUE, Action.STOP):
        one = execution(correctness=CorrectnessClass.EMPIRICAL)
        MECHANISMS[action].apply(one, said(action, 0.5))
        assert one.correctness is CorrectnessClass.EMPIRICAL


@pytest.mark.parametrize(
    ("propensity", "weight", "correctness"),
    [(0.5, 0.0, CorrectnessClass.MODIFIED), (1.0, 1.0, CorrectnessClass.EMPIRICAL)],
)
def test_a_stop_by_a_coin_weighs_nothing_and_one_by_a_rule_is_empirical(
    propensity: float, weight: float, correctness: CorrectnessClass
) -> None:
    one = execution()
    MECHANISMS[Action.STOP].apply(one, said(Action.STOP, propensity))
    assert (one.disposition, one.weight) == (Disposition.STOPPED, weight)
    assert one.correctness is correctness


def test_what_has_ended_meanwhile_is_neither_weighed_nor_stopped() -> None:
    one = execution()
    MECHANISMS[Action.STOP].apply(one, said(Action.STOP, 1.0))
    for action in (Action.CONTINUE, Action.STOP):
        outcome = MECHANISMS[action].apply(one, said(action, 0.5))
        assert (outcome, one.weight) == (OutcomeKind.SUPERSEDED, 1.0)
