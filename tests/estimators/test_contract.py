"""What every estimator promises, whichever it is; they are found by their files."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from support.observations import ended_table, random_observation

from steersman.controller.plugins import KINDS, build, names
from steersman.estimators.observation import Observation, RewardTable

PARTS = [(kind, name) for kind in KINDS if kind.startswith("estimators.") for name in names(kind)]
DRIFT = "estimators.drift"


def eventful(seed: int, step: int) -> Observation:
    """Any legal observation in which trajectories have ended and were rewarded."""
    rng = np.random.default_rng((seed, step))
    seen = random_observation(rng, 60, 3, step=step, weight_version=step, policy_kl=0.01)
    lengths = np.exp(rng.normal(6.0, 0.8, 40)).astype(np.int64) + 1
    group, key = np.arange(40) // 8 + 1000 * (step + 1), np.arange(40) // 8 + 7_000
    ended = ended_table(lengths, group_id=group, prompt_key=key, censored=rng.random(40) < 0.1)
    rewarded = RewardTable(
        trajectory_id=ended.trajectory_id,
        group_id=group,
        prompt_key=key,
        group_size=np.full(40, 8),
        reward=(rng.random(40) < 0.4).astype(np.float64),
        weight_version=np.full(40, step),
    )
    speculated = replace(
        seen.replicas,
        iterations=np.full(3, 500 * step),
        busy_s=np.full(3, 5.0 * step),
        sequences_run=np.full(3, 8000.0 * step),
        drafted_at=np.tile([100 * step, 50 * step], (3, 1)),
        accepted_at=np.tile([70 * step, 20 * step], (3, 1)),
    )
    return replace(seen, ended=ended, rewarded=rewarded, replicas=speculated)


def learned(kind: str, name: str, steps: int = 4) -> Any:
    estimator = build(kind, name, {})
    for step in range(steps):
        answer(estimator, eventful(1, step))
    return estimator


def answer(estimator: Any, seen: Observation) -> Any:
    estimator.observe(seen)
    if hasattr(estimator, "feed"):
        estimator.feed("length", np.random.default_rng(seen.tick).normal(size=12))
    return estimator.forecast(seen)


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    for field in fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, Mapping):
            assert dict(left) == dict(right)
        else:
            np.testing.assert_array_equal(left, right, err_msg=field.name)


@pytest.fixture(params=PARTS, ids=[f"{kind}:{name}" for kind, name in PARTS])
def part(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def test_there_is_at_least_one_estimator_of_every_kind() -> None:
    assert {kind for kind, _ in PARTS} == {k for k in KINDS if k.startswith("estimators.")}


def test_a_forecast_is_aligned_with_the_observation(part: tuple[str, str]) -> None:
    seen = eventful(1, 5)
    forecast = answer(learned(*part), seen)
    rows = {len(seen.trajectories), len(seen.groups), len(seen.replicas)}
    for field in fields(forecast):
        value = getattr(forecast, field.name)
        if not isinstance(value, Mapping):
            assert len(value) in rows, field.name


def test_the_same_observations_give_the_same_answers(part: tuple[str, str]) -> None:
    first, second, seen = learned(*part), learned(*part), eventful(1, 6)
    assert_equal(answer(first, seen), answer(second, seen))
    assert first.state_dict() == second.state_dict()


def test_forecasting_learns_nothing(part: tuple[str, str]) -> None:
    if part[0] == DRIFT:
        pytest.skip("a drift estimator reports every alarm once")
    estimator, seen = learned(*part), eventful(1, 7)
    estimator.observe(seen)
    before = estimator.state_dict()
    assert_equal(estimator.forecast(seen), estimator.forecast(seen))
    assert estimator.state_dict() == before


def test_what_was_learned_survives_json(part: tuple[str, str]) -> None:
    first, second = learned(*part), build(*part, {})
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert first.state_dict() == second.state_dict()
    for step in (5, 6, 7):
        assert_equal(answer(first, eventful(2, step)), answer(second, eventful(2, step)))


def test_an_empty_fleet_with_nothing_to_do_is_answered(part: tuple[str, str]) -> None:
    nothing = random_observation(np.random.default_rng(0), 0, 0)
    answer(build(*part, {}), nothing)
    answer(learned(*part), nothing)


def test_keeping_everything_on_drift_changes_no_answer(part: tuple[str, str]) -> None:
    first, second, seen = learned(*part), learned(*part), eventful(1, 8)
    second.reset_on_drift(1.0)
    assert_equal(answer(first, seen), answer(second, seen))


@pytest.mark.parametrize("keep", [0.0, 0.2])
def test_after_a_drift_forecasts_stay_legal(part: tuple[str, str], keep: float) -> None:
    estimator = learned(*part)
    estimator.reset_on_drift(keep)
    forecast = answer(estimator, eventful(1, 9))
    for field in fields(forecast):
        value = getattr(forecast, field.name)
        if isinstance(value, np.ndarray) and field.name != "relative_error":
            assert np.isfinite(value).all(), field.name


def test_health_is_told_in_numbers(part: tuple[str, str]) -> None:
    for estimator in (build(*part, {}), learned(*part)):
        health = estimator.health()
        assert all(isinstance(value, float) for value in health.values())
    assert health
