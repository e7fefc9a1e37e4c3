import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.controllers import steered_by
from support.observations import (
    ended_table,
    forecast_of,
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
from steersman.policies.placement.sticky_least_inflight import StickyLeastInflight

Q, R = Phase.QUEUED, Phase.RUNNING
PLAIN = Contexts()


def at(step: int, now_s: float, ended: list[int] = [], unfinished: int = 1) -> Observation:  # noqa: B006
    table = trajectory_table([R] * unfinished, replica_row=[0] * unfinished)
    trainer = TrainerSignal(step=step)
    return observation(table, replica_table(2), now_s, ended=ended_table(ended), trainer=trainer)


def cost(*seen: Observation, contexts: Contexts = PLAIN) -> float | None:
    """What the last observation says of the step before.  M = 10 ms, c = 1 ms, two replicas."""
    book, found = StepBook(), None
    for one in seen:
        found = book.follow(one, model_of(2), contexts)
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
    book, dead = StepBook(), model_of(2, alive=[False, False])
    book.follow(at(0, 10.0), dead, PLAIN)
    book.follow(at(0, 14.0, [100]), dead, PLAIN)
    assert np.isnan(book.follow(at(1, 20.0), dead, PLAIN))  # type: ignore[arg-type]


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
        book.follow(at(0, float(tick), [5, 6, 7]), model_of(2), PLAIN)
    assert sum(map(len, book.state_dict()["length"])) <= 12


def test_a_state_that_was_saved_goes_on_the_same() -> None:
    book = StepBook()
    book.follow(at(0, 10.0), model_of(2), PLAIN)
    book.follow(at(0, 14.0, [100, 200]), model_of(2), PLAIN)
    again = StepBook.from_state(json.loads(json.dumps(book.state_dict(), allow_nan=False)))
    for one in (book, again):
        assert one.follow(at(1, 20.0, [300]), model_of(2), PLAIN) == pytest.approx(
            np.log(4.0 / 3.4)
        )


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
        model = Outlook.of(observation, forecast, PLAIN).model
        found = self._book.follow(observation, model, PLAIN)
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
