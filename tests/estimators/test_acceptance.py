import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_world import (
    COPYING,
    DEEPEST,
    FADING,
    FULL,
    GEOMETRIC,
    World,
    run,
)
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.acceptance import DiscountedAcceptance
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Observation

SEEDS, STEPS = range(8), 8


def seen(drafted: object, accepted: object, **columns: object) -> Observation:
    return observation(
        trajectory_table([]),
        replica_table(
            len(drafted),  # type: ignore[arg-type]
            drafted_at=np.array(drafted, dtype=np.int64),
            accepted_at=np.array(accepted, dtype=np.int64),
            **columns,
        ),
    )


def nothing(replicas: int = 1, positions: int = 0) -> Observation:
    return seen(np.zeros((replicas, positions)), np.zeros((replicas, positions)))


def taught(drafted: object, accepted: object, **options: object) -> DiscountedAcceptance:
    """One that saw these counts come in since an observation of all zeros."""
    estimator = DiscountedAcceptance(**options)  # type: ignore[arg-type]
    estimator.observe(nothing(*np.shape(drafted)))
    estimator.observe(seen(drafted, accepted))
    return estimator


def draft(world: World, ticks: int, positions: int = DEEPEST) -> list[Observation]:
    """What a world shows that always drafts so many positions."""
    shown = []
    for _ in range(ticks):
        shown.append(world.seen())
        for row in range(len(world.offset)):
            world.decode(row, positions, 5)
        world.step()
    return shown


@pytest.mark.parametrize(
    "shape", [GEOMETRIC, FADING, COPYING], ids=["geometric", "fading", "copying"]
)
def test_the_chosen_k_earns_99_percent_of_every_moments_best_probes_paid(shape: np.ndarray) -> None:
    earned = [run(shape, seed, STEPS) for seed in SEEDS]
    assert min(e.chosen / e.oracle for e in earned) >= 0.99
    assert max(e.fixed.max() / e.oracle for e in earned) < 0.96, "adapting would not matter here"


def test_conditional_acceptance_is_recovered_by_position() -> None:
    accepted = [9000, 4500, 4050, 405]
    estimator = taught([[10_000] * 4], [accepted])
    forecast = estimator.forecast(nothing(1, 4))
    assert forecast.acceptance[0, :4] == pytest.approx([0.9, 0.5, 0.9, 0.1], abs=0.02)
    assert forecast.samples == [10_000]


def test_drafts_of_different_lengths_are_not_taken_for_rejections() -> None:
    short, long = 6000, 2000
    drafted = [short + long, long, long]
    accepted = [0.8 * (short + long), 0.8**2 * long, 0.8**3 * long]
    acceptance = taught([drafted], [accepted]).forecast(nothing(1, 3)).acceptance
    assert acceptance[0, :3] == pytest.approx([0.8] * 3, abs=0.02)


def test_without_data_the_prior_is_answered() -> None:
    for observed in (nothing(3), nothing(3, 12)):
        forecast = DiscountedAcceptance().forecast(observed)
        assert forecast.acceptance.shape == (3, max(8, observed.replicas.drafted_at.shape[1]))
        assert forecast.acceptance == pytest.approx(0.7)
        assert forecast.samples.tolist() == [0, 0, 0]


def test_beyond_the_deepest_drafted_position_the_last_one_repeats() -> None:
    acceptance = taught([[5000, 5000]], [[4500, 2250]]).forecast(nothing(1, 2)).acceptance[0]
    assert acceptance[2:] == pytest.approx([acceptance[1]] * 6, abs=0.01)


def test_a_new_replica_starts_from_the_fleet_and_a_different_one_keeps_its_own() -> None:
    estimator = taught([[4000], [4000], [0]], [[3600], [1200], [0]])
    acceptance = estimator.forecast(nothing(3, 1)).acceptance[:, 0]
    assert acceptance == pytest.approx([0.9, 0.3, 0.6], abs=0.02)


def test_counters_that_run_backwards_and_dead_replicas_teach_nothing() -> None:
    estimator = taught([[3000], [3000]], [[2700], [2700]])
    before = estimator.forecast(nothing(2, 1))
    estimator.observe(seen([[10], [9000]], [[0], [0]], alive=np.array([True, False])))
    estimator.observe(seen([[10], [12_000]], [[0], [0]]))
    after = estimator.forecast(nothing(2, 1))
    assert after.acceptance == pytest.approx(before.acceptance)
    assert after.samples == pytest.approx(before.samples)
    estimator.observe(seen([[4010], [12_000]], [[800], [0]]))
    assert estimator.forecast(nothing(2, 1)).acceptance[0, 0] == pytest.approx(0.2, abs=0.05)


def test_replicas_that_begin_to_draft_or_stop_reporting_positions_are_followed() -> None:
    estimator = DiscountedAcceptance()
    estimator.observe(nothing(1, 0))
    estimator.observe(seen([[1000] * 10], [[500] * 10]))
    assert estimator.forecast(nothing(1, 10)).acceptance.shape == (1, 10)
    estimator.observe(nothing(1, 0))
    estimator.observe(seen([[1000] * 40], [[900] * 40]))
    forecast = estimator.forecast(nothing(1, 40))
    assert forecast.acceptance.shape[1] <= 40
    assert 0.55 < forecast.acceptance[0, 0] < 0.95


def test_a_refreshed_drafter_is_noticed_within_seconds() -> None:
    world, estimator = World(GEOMETRIC, seed=3, lost=2.0), DiscountedAcceptance()
    for shown in draft(world, 50):
        estimator.observe(shown)
    old = world.acceptance()[:, 0]
    world.lost = 0.0
    for shown in draft(world, 4):
        estimator.observe(shown)
    new = world.acceptance()[:, 0]
    believed = estimator.forecast(world.seen()).acceptance[:, 0]
    assert (believed > old + 0.9 * (new - old)).all()


def test_replicas_that_draft_nothing_come_to_doubt_when_the_others_see_a_refresh() -> None:
    estimator = taught([[2000]] * 3, [[800]] * 3)
    for tick in range(1, 4):
        news = [[2000 + 500 * tick], [2000 + 500 * tick], [2000]]
        estimator.observe(seen(news, [[800 + 475 * tick], [800 + 475 * tick], [800]]))
    forecast = estimator.forecast(nothing(3, 1))
    assert forecast.samples[2] < 200
    assert forecast.acceptance[2, 0] > 0.7


def test_new_weights_leave_part_of_the_evidence() -> None:
    estimator = taught([[1000]], [[500]], keep_per_version=0.25)
    estimator.observe(seen([[1000]], [[500]], weight_version=np.array([1])))
    assert estimator.forecast(nothing(1, 1)).samples == pytest.approx([250])
    estimator.observe(seen([[1000]], [[500]], weight_version=np.array([1])))
    assert estimator.forecast(nothing(1, 1)).samples == pytest.approx([250])


def test_deep_positions_are_not_forgotten_while_shallow_drafts_are_made() -> None:
    estimator = taught([[2000] * 4], [[1800, 1620, 1458, 1312]])
    drafted, accepted = np.array([[2000] * 4]), np.array([[1800, 1620, 1458, 1312]])
    for _ in range(20):
        drafted[0, 0] += 2000
        accepted[0, 0] += 1800
        estimator.observe(seen(drafted, accepted))
    assert estimator.forecast(nothing(1, 4)).acceptance[0, 3] == pytest.approx(0.9, abs=0.02)


def test_a_reset_keeps_the_share_asked_for() -> None:
    estimator = taught([[1000]], [[100]])
    estimator.reset_on_drift(0.1)
    forecast = estimator.forecast(nothing(1, 1))
    assert forecast.samples == pytest.approx([100])
    estimator.reset_on_drift(0.0)
    assert estimator.forecast(nothing(1, 1)).acceptance == pytest.approx(0.7)


def test_health_tells_a_hopeful_forecast_from_a_good_one() -> None:
    assert all(np.isnan(x) for x in DiscountedAcceptance().health().values())
    good = DiscountedAcceptance()
    for shown in draft(World(FADING, seed=1), 100):
        good.observe(shown)
    assert good.health()["accepted_share_error"] < 0.02
    assert abs(good.health()["accepted_share_bias"]) < 0.01
    hopeful = taught([[1000]], [[100]])
    assert hopeful.health()["accepted_share_bias"] == pytest.approx(0.6, abs=0.01)


def test_the_state_survives_json_and_learns_on_alike() -> None:
    shown = draft(World(FADING, seed=2), 300)
    first, second = DiscountedAcceptance(), DiscountedAcceptance()
    for one in shown[:200]:
        first.observe(one)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for one in shown[200:]:
        first.observe(one)
        second.observe(one)
        assert np.array_equal(first.forecast(one).acceptance, second.forecast(one).acceptance)
        assert np.array_equal(first.forecast(one).samples, second.forecast(one).samples)
    assert first.health() == second.health()


@pytest.mark.parametrize(
    "options", [{"positions": 0}, {"memory_drafts": 0.0}, {"keep_per_version": 1.5}], ids=str
)
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        DiscountedAcceptance(**options)  # type: ignore[arg-type]


counts = st.lists(
    st.lists(st.integers(0, 5000), min_size=2, max_size=2).map(lambda x: [x, [c // 2 for c in x]]),
    min_size=1,
    max_size=20,
)


@settings(max_examples=50, deadline=None)
@given(counts, st.lists(st.booleans(), min_size=20, max_size=20))
def test_whatever_the_counters_say_acceptance_is_a_probability(
    reports: list[list[list[int]]], alive: list[bool]
) -> None:
    estimator = DiscountedAcceptance(positions=3)
    for (drafted, accepted), lives in zip(reports, alive, strict=False):
        estimator.observe(seen([drafted], [accepted], alive=np.array([lives])))
        forecast = estimator.forecast(nothing(1, 2))
        assert ((forecast.acceptance > 0) & (forecast.acceptance < 1)).all()
        assert (forecast.samples >= 0).all()


def test_the_world_swings_between_a_full_batch_and_one_sequence() -> None:
    world, batches = World(GEOMETRIC, seed=0), []
    for _ in range(120):
        batches.append(world.batch())
        world.step()
    assert np.max(batches) == FULL
    assert np.min(batches) == 1
