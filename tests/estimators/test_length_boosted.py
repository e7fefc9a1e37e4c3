import json
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.length_world import World, make_world
from support.observations import random_observation

from steersman.controller.calibration.replay import TICKS, StepWorld, replay_lengths
from steersman.estimators import _boosting
from steersman.estimators._boosting import Correction, Training
from steersman.estimators.contract import LengthEstimator
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.length import SurvivalLength
from steersman.estimators.length_boosted import BoostedLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation

GROUPS, STEPS = 16, 8


@pytest.fixture(scope="module")
def world() -> World:
    return make_world("t", heavy=True, steps=STEPS, seed=0, jump=0.0, groups=GROUPS)


def observations(world: World, steps: int = STEPS) -> list[Observation]:
    seen: list[Observation] = []
    first_id = 0
    for number, step in enumerate(world.steps[:steps]):
        of_step = StepWorld(step, number, first_id)
        seen += [of_step.observe(tick) for tick in range(TICKS + 1)]
        first_id += len(step.length)
    return seen


def answers(estimator: LengthEstimator, seen: list[Observation]) -> list[np.ndarray]:
    """The forecast after every tenth observation."""
    told = []
    for number, observation in enumerate(seen):
        estimator.observe(observation)
        if number % 10 == 0:
            told.append(estimator.forecast(observation).remaining_tokens)
    return told


def slowed(fit: Callable[[Training], Correction]) -> Callable[[Training], Correction]:
    def slow(rows: Training) -> Correction:
        time.sleep(0.2)
        return fit(rows)

    return slow


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 200))
@settings(deadline=None, max_examples=30)
def test_quantiles_are_ordered_and_within_what_the_cap_leaves(seed: int, count: int) -> None:
    estimator = a_learned_one()
    seen = random_observation(np.random.default_rng(seed), count, 4)
    forecast = estimator.forecast(seen)
    t = seen.trajectories
    left = np.where(t.phase == Phase.ENDED, 0, t.max_new_tokens - t.generated_tokens)
    assert forecast.remaining_tokens.shape == (count, 3)
    assert (np.diff(forecast.remaining_tokens, axis=1) >= 0).all()
    assert (forecast.remaining_tokens >= np.minimum(left, 1)[:, None]).all()
    assert (forecast.remaining_tokens <= left[:, None]).all()
    assert (forecast.mean_remaining_tokens >= 0).all()
    assert (forecast.mean_remaining_tokens <= left).all()


_LEARNED: list[BoostedLength] = []


def a_learned_one() -> BoostedLength:
    if not _LEARNED:
        estimator = BoostedLength()
        answers(estimator, observations(make_world("mix", True, 5, 1, groups=GROUPS)))
        _LEARNED.append(estimator)
    return _LEARNED[0]


def test_before_anything_is_fitted_it_answers_as_the_survival_model(world: World) -> None:
    seen = observations(world, steps=3)
    plain, boosted = answers(SurvivalLength(), seen), answers(BoostedLength(), seen)
    assert all((a == b).all() for a, b in zip(plain, boosted, strict=True))


def test_a_slow_thread_changes_no_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observations(world, steps=6)
    quick = answers(BoostedLength(), seen)
    monkeypatch.setattr(_boosting, "fit", slowed(_boosting.fit))
    slow = answers(BoostedLength(), seen)
    assert all((a == b).all() for a, b in zip(quick, slow, strict=True))
    plain = answers(SurvivalLength(), seen)
    assert not all((a == b).all() for a, b in zip(quick, plain, strict=True))


def test_it_loses_nothing_against_the_survival_model_and_stays_calibrated(world: World) -> None:
    """In a world made for the survival model, where trees have little to add: within 2 %."""
    scores = replay_lengths(world.steps, {"plain": SurvivalLength(), "boosted": BoostedLength()})
    plain, boosted = scores["plain"].result(), scores["boosted"].result()
    assert boosted["pinball"] < 1.02 * plain["pinball"]
    assert 0.84 < boosted["q90_coverage"] < 0.96


def test_trees_find_what_the_survival_model_cannot_express() -> None:
    """Prompts of more than 1000 tokens get answers with a hard stop at 600; others run on."""
    rng = np.random.default_rng(0)
    n = 3000
    remaining = np.exp(rng.normal(6.0, 0.7, n))
    stops = rng.random(n) < 0.5
    truth = np.where(stops, np.minimum(remaining, 600.0), remaining)
    forecast = 6.0 + 0.7 * np.array([-1.2816, 0.0, 1.2816])
    rows = Training(
        np.column_stack((np.tile(forecast, (n, 1)), stops)),
        np.log(truth)[:, None] - forecast,
        rng.integers(0, 300, n),
        rng.random(n),
    )
    factor = _boosting.fit(rows).log_factor(rows.features)
    upper = np.exp(forecast[2] + factor[:, 2])
    assert (truth <= upper)[~stops].mean() == pytest.approx(0.9, abs=0.04)
    assert np.median(upper[stops]) < 0.8 * np.median(upper[~stops])


def test_the_state_survives_json_and_the_trees_grow_again(world: World) -> None:
    seen = observations(world, steps=7)
    half = 5 * (TICKS + 1) + 20
    first, second = BoostedLength(), BoostedLength()
    answers(first, seen[:half])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    told, again = answers(first, seen[half:]), answers(second, seen[half:])
    assert all((a == b).all() for a, b in zip(told, again, strict=True))
    assert first.state_dict() == second.state_dict()


def test_the_saved_rows_are_bounded() -> None:
    estimator = BoostedLength()
    answers(estimator, observations(make_world("mix", False, 12, 0, groups=64)))
    steps = estimator.state_dict()["steps"]
    assert len(steps) <= 9
    assert max(len(step["priority"]) for step in steps) == _boosting.STEP_ROWS


def test_no_thread_outlives_the_estimator(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_boosting, "fit", slowed(_boosting.fit))
    before = threading.active_count()
    estimator = BoostedLength()
    answers(estimator, observations(world, steps=4))
    estimator.observe(StepWorld(world.steps[4], 4, 10_000).observe(0))
    assert threading.active_count() > before
    del estimator
    assert threading.active_count() == before


def test_an_alarm_drops_what_the_trees_learned_and_a_doubt_does_not(world: World) -> None:
    estimator = BoostedLength()
    answers(estimator, observations(world, steps=5))
    estimator.reset_on_drift(0.5)
    assert estimator.health()["boosting_rows"] > 0
    estimator.reset_on_drift(0.2)
    assert estimator.health()["boosting_rows"] == 0


def test_a_fit_that_fails_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rows: Training) -> Correction:
        raise MemoryError

    monkeypatch.setattr(_boosting, "fit", broken)
    with pytest.raises(MemoryError):
        answers(BoostedLength(), observations(world, steps=6))


def test_refitting_less_than_every_step_but_never_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="refit_every is 0; valid: 1 or more"):
        BoostedLength(refit_every=0)
