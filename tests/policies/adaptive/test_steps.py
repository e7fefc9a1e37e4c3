import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from support.controllers import steered_by
from support.observations import (
    ended_table,
    forecast_of,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)
from support.plan_worlds import model_of
from support.steered_replay import steered
from support.tailed_replay import EIGHT

from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation, TrainerSignal
from steersman.policies.adaptive import steps as module
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.outlook import Outlook
from steersman.policies.adaptive.steps import FEATURES, StepBook, features
from steersman.policies.decision import Decision
from steersman.policies.placement.adaptive import Adaptive
from steersman.policies.placement.sticky_least_inflight import StickyLeastInflight

Q, R = Phase.QUEUED, Phase.RUNNING
PLAIN = Contexts()


def at(step: int, now_s: float, ended: list[int] = [], unfinished: int = 1) -> Observation:  # noqa: B006
    on = np.zeros(unfinished, dtype=np.int64)
    table = trajectory_table([R] * unfinished, replica_row=on)
    trainer = TrainerSignal(step=step)
    return observation(table, replica_table(2), now_s, ended=ended_table(ended), trainer=trainer)


def outlook_of(seen: Observation, left: float = 50.0, contexts: Contexts = PLAIN) -> Outlook:
    """M = 10 ms, c = 1 ms, two replicas; all that is unfinished has `left` tokens to write."""
    forecast = forecast_of(seen, [left] * len(seen.trajectories))
    return replace(Outlook.of(seen, forecast, contexts), model=model_of(2))


def cost(*seen: Observation, contexts: Contexts = PLAIN) -> float | None:
    """What the last observation says of the step before."""
    book, found = StepBook(), None
    for one in seen:
        found = book.follow(one, outlook_of(one, contexts=contexts), contexts)
    return found


def test_a_step_costs_its_seconds_over_what_the_default_would_take() -> None:
    """Fewest in flight: 100 and 300 tokens on r0, 200 on r1.  3 s + 0.4 s, and it took 6.8 s."""
    found = cost(at(0, 10.0), at(0, 14.0, [100, 200]), at(0, 16.8, [300], 0), at(1, 20.0))
    assert found == pytest.approx(np.log(2.0))


def test_what_is_first_seen_when_the_next_step_begins_counts() -> None:
    assert cost(at(0, 10.0), at(0, 16.8, [100, 200]), at(1, 20.0, [300])) == pytest.approx(
        np.log(2.0)
    )


def test_a_step_that_goes_on_costs_nothing_yet() -> None:
    assert cost(at(0, 10.0), at(0, 14.0, [100])) is None
    assert cost(at(7, 10.0)) is None


def test_a_step_in_which_nothing_ended_or_that_took_no_time_costs_nan() -> None:
    assert np.isnan(cost(at(0, 10.0), at(0, 14.0), at(1, 20.0)))  # type: ignore[arg-type]
    assert np.isnan(cost(at(0, 10.0), at(1, 20.0, [100])))  # type: ignore[arg-type]
    assert np.isnan(cost(at(0, 10.0), at(0, 12.0, [0]), at(1, 20.0)))  # type: ignore[arg-type]


def test_a_fleet_that_died_costs_nan() -> None:
    book, found = StepBook(), None
    for one in (at(0, 10.0), at(0, 14.0, [100]), at(1, 20.0)):
        dead = replace(outlook_of(one), model=model_of(2, alive=[False, False]))
        found = book.follow(one, dead, PLAIN)
    assert np.isnan(found)  # type: ignore[arg-type]


def test_each_step_is_counted_for_itself() -> None:
    seen = (at(0, 10.0), at(0, 12.0, [900, 900]), at(1, 20.0), at(1, 21.1, [100]), at(2, 30.0))
    assert cost(*seen) == pytest.approx(0.0)


def test_who_waits_for_tools_is_expected_to() -> None:
    """100 tokens take 200 iterations: 2 s + 0.1 s."""
    found = cost(at(0, 10.0), at(0, 12.1, [100]), at(1, 20.0), contexts=Contexts(stretch=2.0))
    assert found == pytest.approx(0.0)


def test_the_time_in_which_the_trainer_trains_is_not_the_steps() -> None:
    """A live loop ticks on while nothing is unfinished."""
    idle = [at(0, 20.0 + tick, unfinished=0) for tick in range(50)]
    seen = (at(0, 10.0), at(0, 16.8, [100, 200, 300], 0), *idle, at(1, 80.0))
    assert cost(*seen) == pytest.approx(np.log(2.0))


def test_a_step_that_never_ends_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENDED", 10)
    book = StepBook()
    for tick in range(100):
        one = at(0, float(tick), [5, 6, 7])
        book.follow(one, outlook_of(one), PLAIN)
    assert sum(map(len, book.state_dict()["length"])) <= 12


def test_a_state_that_was_saved_goes_on_the_same() -> None:
    book, next_ = StepBook(), at(1, 20.0, [300])
    for one in (at(0, 10.0), at(0, 14.0, [100, 200])):
        book.follow(one, outlook_of(one), PLAIN)
    again = StepBook.from_state(json.loads(json.dumps(book.state_dict(), allow_nan=False)))
    for kept in (book, again):
        assert kept.follow(next_, outlook_of(next_), PLAIN) == pytest.approx(np.log(4.0 / 3.4))


def begins(step: int, now_s: float, own: int, late: int, ended: list[int] = []) -> Observation:  # noqa: B006
    """The first look at a step: `late` were put off in the one before with 400 tokens written, and
    belong to groups 100, 101, ...; what ended does to others."""
    n = own + late
    table = trajectory_table(
        [Q] * n,
        generated_tokens=[0] * own + [400] * late,
        deferred=[0] * own + [1] * late,
    )
    groups = group_table(n, step=[step] * own + [step - 1] * late)
    groups = replace(groups, group_id=np.concatenate((np.arange(own), 100 + np.arange(late))))
    trainer, table_of_ended = TrainerSignal(step=step), ended_table(ended)
    return observation(
        table, replica_table(2), now_s, groups=groups, ended=table_of_ended, trainer=trainer
    )


def test_a_step_that_puts_off_pays_for_what_the_next_one_takes_longer() -> None:
    """Own of the first: 100 and 200 tokens ended, one of 400 + 50 is carried.  The default would
    have needed 4.5 s + .55 s: 100 and 450 on one replica.  It took 3 s, and the second step, of one
    answer of 50 tokens a replica, ends .05 s later for 50 more there."""
    carried = begins(1, 20.0, own=2, late=1)
    found = cost(at(0, 10.0), at(0, 13.0, [100, 200]), carried)
    assert found == pytest.approx(np.log((3.0 + 0.05) / (4.5 + 0.55)), abs=1e-6)


def test_a_step_after_one_that_put_off_is_not_credited_for_what_was_written_then() -> None:
    """All 450 tokens of group 100 were counted before; own are 100 and 200, in 2.2 s + .05 s."""
    ended = replace(ended_table([100, 200, 450]), group_id=np.array([0, 1, 100]))
    later = replace(at(1, 22.25), ended=ended)
    found = cost(at(0, 10.0), begins(1, 20.0, own=2, late=1), later, at(2, 30.0))
    assert found == pytest.approx(0.0, abs=1e-6)


def test_what_a_step_carries_out_is_unknown_where_the_next_only_waits_for_it() -> None:
    """A drain: it says nothing of the step before, nor of itself."""
    seen = (at(0, 10.0), at(0, 13.0, [100]), begins(1, 20.0, own=0, late=1))
    assert np.isnan(cost(*seen))  # type: ignore[arg-type]
    late = replace(ended_table([450]), group_id=np.array([100]))
    assert np.isnan(cost(*seen, replace(at(1, 22.0), ended=late), at(2, 30.0)))  # type: ignore[arg-type]


def test_the_groups_that_were_carried_in_outlive_a_saved_state() -> None:
    book = StepBook()
    for one in (at(0, 10.0), begins(1, 20.0, own=2, late=1)):
        book.follow(one, outlook_of(one), PLAIN)
    again = StepBook.from_state(json.loads(json.dumps(book.state_dict(), allow_nan=False)))
    assert again.state_dict() == book.state_dict()
    assert again.carried_s == pytest.approx(0.05)


def waiting(n: int, capacity: float) -> np.ndarray:
    """Features of `n` that end with 1000 tokens, on two replicas of 32 slots."""
    seen = observation(trajectory_table([Q] * n), replica_table(2))
    outlook = Outlook.of(seen, forecast_of(seen, [900.0] * n), PLAIN)
    model = outlook.model._replace(capacity=np.full(2, capacity))
    return features(seen, model, outlook.final)


def test_features_are_waves_of_slots_and_fills_of_memory() -> None:
    """128 on 64 slots; 128,000 tokens on 64,000."""
    assert waiting(128, 32_000.0).tolist() == pytest.approx([np.log(2) / 3, np.log(2) / 3])
    assert waiting(64, np.inf).tolist() == pytest.approx([0.0, -1.0])


@pytest.mark.parametrize("n", [0, 1, 50_000])
def test_features_are_bounded(n: int) -> None:
    found = waiting(n, 10.0)
    assert found.shape == (FEATURES,)
    assert (np.abs(found) <= 1).all()


@dataclass
class Booked(StickyLeastInflight):
    """The default rule, with the book kept beside it."""

    costs: list[float] = field(default_factory=list)
    _book: StepBook = field(default_factory=StepBook)

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        found = self._book.follow(observation, Outlook.of(observation, forecast, PLAIN), PLAIN)
        if found is not None:
            self.costs.append(found)
        return super().decide(observation, forecast, rng)


@pytest.mark.parametrize("seed", range(3))
def test_the_default_rule_costs_about_nothing(seed: int) -> None:
    """On tails, from the second step on: before, the replicas' speeds are not known."""
    policy = Booked()
    workload = made_up(Lengths(steps=4, groups=32, group_size=4), seed)
    steered(workload, EIGHT, steered_by(policy))
    assert len(policy.costs) == 3
    assert np.abs(policy.costs).max() < 0.1


@dataclass
class InTurns(Adaptive):
    """Puts off in every other step, as the default rule does otherwise."""

    costs: list[float] = field(default_factory=list)

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        step = observation.trainer.step
        self._arm = "full" if step % 2 == 0 else "default"
        book = deepcopy(self._book)
        found = book.follow(
            observation, Outlook.of(observation, forecast, self._contexts), self._contexts
        )
        if found is not None:
            self.costs.append(found)
        return super().decide(observation, forecast, rng)


@pytest.mark.parametrize("seed", range(2))
def test_in_turns_the_steps_that_put_off_are_the_cheap_ones(seed: int) -> None:
    """And not those that find half of their longest answers written."""
    policy = InTurns(allow="corrected", stack="full")
    workload = made_up(Lengths(steps=14, groups=32, group_size=4, p90_over_p50=6.0), seed)
    steered(workload, EIGHT, steered_by(policy), max_lag=1)
    costs = np.array(policy.costs[3:])  # of steps 3, 4, ...
    puts_off, default = costs[1::2], costs[::2]
    assert puts_off.mean() < default.mean() - 0.1
