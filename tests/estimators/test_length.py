import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.observations import (
    ended_table,
    group_table,
    observation,
    random_observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.length import SurvivalLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import EndedTable, Observation, TrainerSignal


def nobody_left(ended: EndedTable, step: int = 0) -> Observation:
    return observation(
        trajectory_table([]), replica_table(1), ended=ended, trainer=TrainerSignal(step=step)
    )


def log_normal(rng: np.random.Generator, count: int, median: float = 1000.0) -> np.ndarray:
    return np.exp(np.log(median) + rng.normal(0.0, 0.8, count)).astype(np.int64)


def grown(ages: np.ndarray, ended: EndedTable, cap: int = 100_000) -> Observation:
    """Running trajectories of these ages, each of its own prompt, beside what has just ended."""
    n = len(ages)
    table = trajectory_table(
        [Phase.RUNNING] * n,
        replica_row=np.zeros(n, dtype=np.int64),
        generated_tokens=ages,
        max_new_tokens=np.full(n, cap),
    )
    groups = group_table(n, prompt_key=np.arange(n) + 50_000)
    return observation(table, replica_table(1), groups=groups, ended=ended)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 200), learned=st.integers(0, 50))
@example(seed=4, count=110, learned=1)
@settings(deadline=None, max_examples=60)
def test_quantiles_are_ordered_and_within_what_the_cap_leaves(
    seed: int, count: int, learned: int
) -> None:
    rng = np.random.default_rng(seed)
    seen = random_observation(rng, count, 4)
    estimator = SurvivalLength()
    estimator.observe(nobody_left(ended_table(log_normal(rng, learned))))
    estimator.observe(seen)
    forecast = estimator.forecast(seen)
    t = seen.trajectories
    left = np.where(t.phase == Phase.ENDED, 0, t.max_new_tokens - t.generated_tokens)
    assert forecast.remaining_tokens.shape == (count, 3)
    assert (np.diff(forecast.remaining_tokens, axis=1) >= 0).all()
    assert (forecast.remaining_tokens >= 0).all()
    assert (forecast.remaining_tokens <= left[:, None]).all()
    assert (forecast.mean_remaining_tokens >= 0).all()
    assert (forecast.mean_remaining_tokens <= left).all()


def test_without_data_the_forecast_spans_what_the_cap_leaves() -> None:
    seen = grown(np.array([0, 1000]), EndedTable.empty(), cap=11_000)
    forecast = SurvivalLength().forecast(seen)
    assert forecast.remaining_tokens == pytest.approx(
        np.array([[1100, 5500, 9900], [1000, 5000, 9000]])
    )
    assert forecast.mean_remaining_tokens == pytest.approx([5500, 5000])


def test_a_fresh_trajectory_is_forecast_as_long_as_those_that_ended() -> None:
    rng = np.random.default_rng(0)
    estimator = SurvivalLength()
    for part in range(4):
        keys = np.arange(1000) + 1000 * part
        estimator.observe(nobody_left(ended_table(log_normal(rng, 1000), prompt_key=keys)))
    quantiles = estimator.forecast(grown(np.array([0]), EndedTable.empty())).remaining_tokens[0]
    truth = 1000 * np.exp(0.8 * np.array([-1.2816, 0.0, 1.2816]))
    assert quantiles == pytest.approx(truth, rel=0.15)


def test_the_older_a_heavy_tailed_trajectory_is_the_more_it_has_left() -> None:
    rng = np.random.default_rng(1)
    estimator = SurvivalLength()
    estimator.observe(nobody_left(ended_table(log_normal(rng, 3000))))
    forecast = estimator.forecast(grown(np.array([500, 2000, 4000]), EndedTable.empty()))
    assert (np.diff(forecast.median) > 0).all()


def tick_by_tick(estimator: SurvivalLength, lengths: np.ndarray, until: int) -> Observation:
    """All trajectories write at one pace; the observation at `until` tokens."""
    seen = grown(np.zeros(0, dtype=np.int64), EndedTable.empty())
    for now in range(0, until + 1, until // 20):
        before = now - until // 20
        over = np.flatnonzero((lengths <= now) & (lengths > before))
        alive = np.flatnonzero(lengths > now)
        table = trajectory_table(
            [Phase.RUNNING] * len(alive),
            trajectory_id=alive,
            replica_row=np.zeros(len(alive), dtype=np.int64),
            generated_tokens=np.full(len(alive), now),
            max_new_tokens=np.full(len(alive), 100_000),
        )
        keys = 50_000 + np.arange(len(lengths))
        groups = group_table(len(alive), prompt_key=keys[alive])
        ended = ended_table(lengths[over], trajectory_id=over, group_id=over, prompt_key=keys[over])
        seen = observation(table, replica_table(1), groups=groups, ended=ended)
        estimator.observe(seen)
    return seen


def test_early_finishers_do_not_make_the_survivors_look_short() -> None:
    """In mid-step only the short ones have ended; what ignores the alive calls all of them short.

    Of lengths with median 1000, half have ended at 1000 tokens.  Their own median is about 600, so
    an estimator of the ended alone gives a fresh trajectory 600; the truth is 1000.
    """
    lengths = log_normal(np.random.default_rng(2), 2000)
    estimator = SurvivalLength()
    tick_by_tick(estimator, lengths, until=1000)
    ended = lengths[lengths <= 1000]
    fresh = estimator.forecast(grown(np.array([0]), EndedTable.empty())).median[0]
    assert np.median(ended) < 700
    assert 800 < fresh < 1300


def test_survivors_are_forecast_by_those_that_lived_as_long() -> None:
    rng = np.random.default_rng(3)
    estimator = SurvivalLength()
    estimator.observe(nobody_left(ended_table(log_normal(rng, 2000))))
    lengths = log_normal(rng, 2000)
    seen = tick_by_tick(estimator, lengths, until=1500)
    left = lengths[lengths > 1500] - 1500
    quantiles = estimator.forecast(seen).remaining_tokens
    covered = (left[:, None] <= quantiles).mean(axis=0)
    assert covered == pytest.approx([0.1, 0.5, 0.9], abs=0.12)


def test_a_truncated_length_is_a_lower_bound_and_no_length() -> None:
    """Half of the lengths are cut at 1000; counting the cuts as lengths gives a 90 % of 1000."""
    lengths = log_normal(np.random.default_rng(4), 4000)
    cut = np.minimum(lengths, 1000)
    estimator = SurvivalLength()
    estimator.observe(nobody_left(ended_table(cut, censored=lengths > 1000)))
    upper = estimator.forecast(grown(np.array([0]), EndedTable.empty())).upper[0]
    assert np.quantile(cut, 0.9) == 1000
    assert upper > 2000


def test_the_same_prompt_in_a_later_step_is_expected_to_be_itself() -> None:
    rng = np.random.default_rng(5)
    keys = np.repeat(np.arange(200), 8)
    centre = np.repeat(rng.normal(0, 1.0, 200), 8)
    lengths = np.exp(6.5 + centre + rng.normal(0, 0.4, 1600)).astype(np.int64)
    estimator = SurvivalLength()
    for part in np.array_split(rng.permutation(1600), 4):
        estimator.observe(nobody_left(ended_table(lengths[part], prompt_key=keys[part])))
    estimator.observe(nobody_left(EndedTable.empty(), step=1))
    seen = grown(np.zeros(200, dtype=np.int64), EndedTable.empty())
    seen = observation(
        seen.trajectories, seen.replicas, groups=group_table(200, prompt_key=np.arange(200))
    )
    predicted = np.log(estimator.forecast(seen).median)
    assert np.corrcoef(predicted, centre[::8])[0, 1] > 0.9


def test_the_state_survives_json() -> None:
    rng = np.random.default_rng(6)
    first, second = SurvivalLength(), SurvivalLength()
    first.observe(nobody_left(ended_table(log_normal(rng, 100))))
    seen = random_observation(rng, 100, 4)
    first.observe(seen)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    later = random_observation(rng, 100, 4)
    for estimator in (first, second):
        estimator.observe(later)
    a, b = first.forecast(later), second.forecast(later)
    assert (a.remaining_tokens == b.remaining_tokens).all()
    assert (a.mean_remaining_tokens == b.mean_remaining_tokens).all()
    assert first.state_dict() == second.state_dict()


def test_memory_is_bounded_and_the_longest_unseen_prompts_go_first() -> None:
    estimator = SurvivalLength(max_prompts=100)
    for step in range(10):
        keys = np.arange(40) + 40 * step
        estimator.observe(nobody_left(ended_table([500] * 40, prompt_key=keys), step))
    estimator.observe(nobody_left(EndedTable.empty(), 10))
    kept = estimator.state_dict()["tokens"]["locations"]["prompts"]["keys"]
    assert len(kept) == 100
    assert set(kept) >= set(range(320, 400))


def test_after_a_drift_little_of_the_past_is_kept() -> None:
    rng = np.random.default_rng(7)
    estimator = SurvivalLength()
    estimator.observe(nobody_left(ended_table(log_normal(rng, 2000, median=300))))
    estimator.reset_on_drift(0.01)
    estimator.observe(nobody_left(ended_table(log_normal(rng, 1000, median=3000))))
    assert estimator.forecast(grown(np.array([0]), EndedTable.empty())).median[0] > 2000


def test_doubts_within_one_step_do_not_add_up_to_forgetting_everything() -> None:
    rng = np.random.default_rng(8)
    estimator = SurvivalLength()
    estimator.observe(nobody_left(ended_table(log_normal(rng, 2000, median=300))))
    for _ in range(20):
        estimator.reset_on_drift(0.2)
    median = estimator.forecast(grown(np.array([0]), EndedTable.empty())).median[0]
    assert 200 < median < 450


def test_two_groups_of_one_prompt_that_end_together_are_one_prompt() -> None:
    estimator = SurvivalLength()
    estimator.observe(nobody_left(ended_table([300, 400], group_id=[1, 2], prompt_key=[9, 9])))
    estimator.observe(nobody_left(EndedTable.empty(), step=1))
    assert estimator.prompts.keys.tolist() == [9]
