"""When a look ahead is asked for and seen, in virtual time and beside a live loop."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.following import Follows
from support.observations import forecast_of, observation, replica_table, trajectory_table
from support.small_replay import PROFILE, small_workload

from steersman.controller.config import HorizonConfig, load_config
from steersman.controller.core import Controller, Estimators, Stack
from steersman.controller.horizon import runner
from steersman.controller.horizon.runner import HorizonThread, InlineHorizon, Question
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.options import Options
from steersman.controller.replay.redraw import FromWorkload
from steersman.controller.replay.ticks import Ticks
from steersman.controller.replay.world import World
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Advice, Objective, Observation, TrainerSignal
from steersman.policies.adaptive.plans import PLANS
from steersman.policies.contract import LooksAhead
from steersman.policies.placement.round_robin import RoundRobin

EVERY_S, DELAY_S = 5.0, 1.0
CONFIG = HorizonConfig(every_s=EVERY_S, delay_s=DELAY_S, scenarios=4)
HELD = PLANS[1]
ANSWER = Advice(0, 0.0, ("default",), np.zeros(1), np.zeros(1))


def at(now_s: float, step: int = 0, waits: bool = True) -> tuple[Observation, Forecast]:
    phase = Phase.QUEUED if waits else Phase.PARKED
    seen = observation(
        trajectory_table([phase] * 4), replica_table(1), now_s, trainer=TrainerSignal(step=step)
    )
    return seen, forecast_of(seen, [100.0] * 4)


def told_at(horizon: Any, times: list[float], **what: Any) -> list[tuple[float, float]]:
    """(seen, asked) times of the answers."""
    answers = []
    for now_s in times:
        seen, forecast = at(now_s, **what)
        seen = horizon.advised(seen)
        if seen.advice is not None:
            answers.append((now_s, seen.advice.asked_s))
        horizon.look(seen, forecast)
    return answers


def inline(config: HorizonConfig = CONFIG, policy: Any = None) -> InlineHorizon:
    return InlineHorizon(policy or Follows(plans=PLANS), config)


def test_an_answer_is_seen_once_and_not_before_it_is_due() -> None:
    times = [0.0, 0.9, 1.0, 1.1, 4.9, 5.2, 6.1, 6.3, 9.0, 12.0, 13.5]
    assert told_at(inline(), times) == [(1.0, 0.0), (6.3, 5.2), (13.5, 12.0)]


def test_a_new_question_waits_for_the_last_answer() -> None:
    slow = replace_config(every_s=1.0, delay_s=3.0)
    assert told_at(inline(slow), [0.0, 1.0, 2.0, 3.0, 4.0, 6.0]) == [(3.0, 0.0), (6.0, 3.0)]


def test_nothing_is_asked_where_nothing_waits_or_nobody_wants_to_know() -> None:
    times = [0.0, 2.0, 6.0, 8.0]
    assert told_at(inline(), times, waits=False) == []
    assert told_at(inline(replace_config(every_s=0.0)), times) == []
    assert told_at(inline(policy=Follows(plans=())), times) == []
    assert told_at(inline(policy=RoundRobin()), times) == []


def test_an_answer_about_a_step_that_is_over_is_not_seen() -> None:
    horizon = inline()
    seen, forecast = at(0.0)
    horizon.look(seen, forecast)
    assert horizon.advised(at(2.0, step=1)[0]).advice is None
    assert horizon.advised(at(3.0)[0]).advice is None


def test_only_policies_with_plans_look_ahead() -> None:
    assert isinstance(Follows(), LooksAhead)
    assert not isinstance(RoundRobin(), LooksAhead)


@pytest.mark.parametrize("wrong", [{"every_s": -1.0}, {"scenarios": 3}, {"scenarios": 2}])
def test_what_cannot_be_configured_is_one_clear_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        HorizonConfig(**wrong)


def replace_config(**values: Any) -> HorizonConfig:
    return HorizonConfig(**{"delay_s": DELAY_S, "scenarios": 4, "every_s": EVERY_S, **values})


# In a replay


def replayed(policy: Follows) -> Follows:
    workload, plan = small_workload(steps=1, groups=6, size=4), FleetPlan(PROFILE, 1)
    said = ("tick_s=0.2", "horizon.every_s=1", "horizon.delay_s=0.5", "horizon.scenarios=4")
    config = load_config(None, said, environ={})
    stack = replace(Stack.from_config(config), placement=policy)
    world = World(plan, FromWorkload(workload, 0))
    ticks = Ticks(
        world, Controller(config, Estimators.from_config(config), stack), config, Options()
    )
    ticks.begin_step(0)
    world.admit(workload.steps[0])
    while world.waiting or world.running:
        ticks.once(0, Objective.BARRIER, 0)
    return policy


def test_in_a_replay_the_answers_come_at_the_ticks_of_the_schedule() -> None:
    policy = replayed(Follows(HELD, PLANS))
    asked = [advice.asked_s for _, advice in policy.seen]
    waited = {now_s for now_s, count in policy.waited if count}
    assert len(asked) >= 3
    assert set(asked) <= waited
    assert all(b - a >= 1.0 for a, b in pairwise(asked))
    ticks = [now_s for now_s, _ in policy.waited]
    for now_s, advice in policy.seen:
        assert now_s == next(t for t in ticks if t >= advice.asked_s + 0.5)
    again = replayed(Follows(HELD, PLANS))
    assert [(s, a.mean_s.tolist()) for s, a in policy.seen] == [
        (s, a.mean_s.tolist()) for s, a in again.seen
    ]


# Beside a live loop


def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_s
        threading.Event().wait(0.001)


def test_beside_a_live_loop_an_answer_is_seen_when_it_is_due_and_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = threading.Event()
    monkeypatch.setattr(Question, "answer", lambda self: ANSWER if go.wait(20) else None)
    horizon = HorizonThread(Follows(plans=PLANS), CONFIG)
    assert told_at(horizon, [0.0, 2.0, 7.0]) == []  # it is not there, and not asked again
    go.set()
    answers: list[tuple[float, float]] = []
    until(lambda: bool(answers.extend(told_at(horizon, [8.0])) or answers))
    assert answers == [(8.0, 0.0)]
    assert horizon.advised(at(8.5)[0]).advice is None  # the next is asked, and not due
    horizon.close()
    thread = horizon._thread
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()


def test_a_failure_is_logged_once_and_is_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[float] = []

    def fail(question: Question) -> None:
        asked.append(question.observation.now_s)
        raise RuntimeError("no")

    monkeypatch.setattr(Question, "answer", fail)
    horizon = HorizonThread(Follows(plans=PLANS), CONFIG)
    with caplog.at_level(logging.ERROR):
        told_at(horizon, [0.0])
        until(lambda: bool(told_at(horizon, [2.0])) or bool(caplog.records))
        assert told_at(horizon, [8.0, 14.0, 20.0]) == []
    assert asked == [0.0]
    assert [record.name for record in caplog.records] == [runner.__name__]
    horizon.close()


def test_a_policy_whose_plans_fail_does_not_stop_the_ticks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Follows):
        @property  # type: ignore[override]
        def plans(self) -> tuple[Any, ...]:
            raise RuntimeError("no")

        @plans.setter
        def plans(self, value: tuple[Any, ...]) -> None:
            pass

    with caplog.at_level(logging.ERROR):
        horizon = HorizonThread(RoundRobin(), CONFIG)
        horizon._schedule._policy = Broken()
        assert told_at(horizon, [0.0, 6.0]) == []
    assert len(caplog.records) == 1


def test_who_does_not_look_ahead_starts_no_thread() -> None:
    horizon = HorizonThread(RoundRobin(), CONFIG)
    told_at(horizon, [0.0, 10.0])
    assert horizon._thread is None
    horizon.close()
