import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.observations import random_observation

from steersman.controller.calibration.baselines import length_baselines
from steersman.controller.calibration.replay import replay_lengths
from steersman.controller.calibration.steps import Plan, Samples, made_up_steps
from steersman.estimators.contract import LengthEstimator
from steersman.estimators.lifecycle import Phase

NAMES = ("naive", "global", "prompt_history", "siblings", "gradient_boosting")


@pytest.fixture(scope="module")
def replayed() -> tuple[dict[str, LengthEstimator], dict[str, dict[str, float]]]:
    """All of them, taught by 60 prompts that come again and again, and their scores there."""
    rng = np.random.default_rng(0)
    prompt = np.repeat(np.arange(60), 24)
    own = rng.normal(6.5, 0.8, 60)[prompt]
    length = np.exp(own + rng.normal(0, 0.5, len(prompt))).astype(np.int64)
    samples = Samples(
        prompt=prompt.astype(str).tolist(),
        length=np.minimum(length, 4096),
        truncated=length >= 4096,
        max_new_tokens=np.full(len(prompt), 4096),
        reward=np.full(len(prompt), np.nan),
        turns=np.ones(len(prompt), dtype=np.int64),
    )
    steps = made_up_steps(samples, Plan(prompts_per_step=20, passes=4, concurrency=1000))
    baselines = dict(length_baselines())
    scores = replay_lengths(steps, baselines)
    return baselines, {name: score.result() for name, score in scores.items()}


def test_each_single_source_is_there() -> None:
    assert tuple(length_baselines()) == NAMES


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 100))
@settings(deadline=None, max_examples=15)
def test_quantiles_are_ordered_and_within_what_the_cap_leaves(
    name: str,
    replayed: tuple[dict[str, LengthEstimator], dict[str, dict[str, float]]],
    seed: int,
    count: int,
) -> None:
    seen = random_observation(np.random.default_rng(seed), count, 4)
    t = seen.trajectories
    left = np.where(t.phase == Phase.ENDED, 0, t.max_new_tokens - t.generated_tokens)
    for estimator in (replayed[0][name], length_baselines()[name]):
        forecast = estimator.forecast(seen)
        assert forecast.remaining_tokens.shape == (count, 3)
        assert (np.diff(forecast.remaining_tokens, axis=1) >= 0).all()
        assert (forecast.remaining_tokens >= 0).all()
        assert (forecast.remaining_tokens <= left[:, None]).all()


@pytest.mark.parametrize("name", NAMES[1:])
def test_each_beats_the_naive_one(
    name: str, replayed: tuple[dict[str, LengthEstimator], dict[str, dict[str, float]]]
) -> None:
    assert replayed[1][name]["pinball"] < 0.8 * replayed[1]["naive"]["pinball"]


@pytest.mark.parametrize("name", ["prompt_history", "siblings", "gradient_boosting"])
def test_whoever_knows_the_prompt_or_the_group_ranks_trajectories(
    name: str, replayed: tuple[dict[str, LengthEstimator], dict[str, dict[str, float]]]
) -> None:
    assert replayed[1][name]["kendall_tau"] > 0.1
    assert replayed[1]["global"]["kendall_tau"] < 0.05
