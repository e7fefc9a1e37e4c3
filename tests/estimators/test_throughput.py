import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.observations import observation, replica_table, trajectory_table
from support.throughput_world import (
    FIXED_S,
    PER_SEQUENCE_S,
    Engine,
    Engines,
    RolloutEngines,
    errors,
    watched,
)

from steersman.estimators.forecast import ThroughputForecast
from steersman.estimators.throughput import IterationTime


def test_m_and_c_are_recovered_from_noisy_iterations() -> None:
    engines, estimator = Engines(4), IterationTime()
    watched(engines, estimator)
    forecast = estimator.forecast(engines.seen())
    assert forecast.fixed_s == pytest.approx([FIXED_S] * 4, rel=0.1)
    assert forecast.per_sequence_s == pytest.approx([PER_SEQUENCE_S] * 4, rel=0.1)
    assert (forecast.samples > 1000).all()


def test_a_slow_replica_is_told_from_the_others() -> None:
    engines, estimator = Engines(4), IterationTime()
    engines.fixed_s[2] *= 2
    watched(engines, estimator)
    assert estimator.forecast(engines.seen()).fixed_s[2] == pytest.approx(2 * FIXED_S, rel=0.1)


def test_without_data_the_prior_is_answered() -> None:
    forecast = IterationTime().forecast(Engines(3).seen())
    assert (forecast.fixed_s > 0).all()
    assert (forecast.per_sequence_s > 0).all()
    assert (forecast.prefill_token_s > 0).all()
    assert (forecast.samples == 0).all()


def test_a_new_replica_starts_from_the_fleets_fit() -> None:
    engines, estimator = Engines(3), IterationTime()
    watched(engines, estimator)
    forecast = estimator.forecast(observation(trajectory_table([]), replica_table(4)))
    assert forecast.samples[3] == 0
    assert forecast.fixed_s[3] == pytest.approx(FIXED_S, rel=0.1)


def test_one_batch_size_alone_gives_the_right_time_at_that_batch() -> None:
    engines, estimator = Engines(2), IterationTime()
    for _ in range(50):
        estimator.observe(engines.seen())
        engines.run(np.full(2, 100.0), noise=0.0)
    forecast = estimator.forecast(engines.seen())
    expected = FIXED_S + PER_SEQUENCE_S * 100
    assert forecast.fixed_s + 100 * forecast.per_sequence_s == pytest.approx([expected] * 2)


def test_dead_stale_and_restarted_replicas_do_not_corrupt_the_fit() -> None:
    engines, estimator = Engines(4), IterationTime()
    watched(engines, estimator)
    before = estimator.forecast(engines.seen())
    dead = np.array([False, True, True, True])
    for _ in range(20):
        engines.counters[:, 0] += (50, 99.0, 50)
        estimator.observe(engines.seen(alive=dead))
    engines.counters[:, 0] = 0
    for _ in range(5):
        estimator.observe(engines.seen())
    after = estimator.forecast(engines.seen())
    assert after.fixed_s == pytest.approx(before.fixed_s)
    assert after.per_sequence_s == pytest.approx(before.per_sequence_s)


def test_the_figures_never_become_negative() -> None:
    engines, estimator = Engines(2), IterationTime()
    engines.per_sequence_s[:] = -0.00005
    watched(engines, estimator)
    forecast = estimator.forecast(engines.seen())
    assert (forecast.fixed_s >= 0).all()
    assert (forecast.per_sequence_s >= 0).all()


def test_the_state_survives_json() -> None:
    engines, first, second = Engines(3), IterationTime(), IterationTime()
    watched(engines, first, ticks=20)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    engines.run(np.full(3, 7.0))
    for estimator in (first, second):
        estimator.observe(engines.seen())
    a, b = first.forecast(engines.seen()), second.forecast(engines.seen())
    assert (a.fixed_s == b.fixed_s).all()
    assert (a.per_sequence_s == b.per_sequence_s).all()


def test_a_forecast_after_a_restore_is_the_one_before() -> None:
    world, first, second = RolloutEngines(3, seed=0), IterationTime(), IterationTime()
    for _ in range(50):
        first.observe(world.seen())
        world.tick()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(2):
        a, b = first.forecast(world.seen()), second.forecast(world.seen())
        for name in ThroughputForecast.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        for estimator in (first, second):
            estimator.observe(world.seen())
        world.tick()


def test_a_changed_speed_is_learned_after_a_drift() -> None:
    engines, estimator = Engines(2), IterationTime()
    watched(engines, estimator)
    engines.fixed_s *= 3
    estimator.reset_on_drift(0.01)
    watched(engines, estimator, ticks=50)
    assert estimator.forecast(engines.seen()).fixed_s == pytest.approx([3 * FIXED_S] * 2, rel=0.15)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_replica_of_a_type_twice_as_slow_is_right_after_few_samples(samples: int) -> None:
    world, estimator = RolloutEngines(4, seed=3), IterationTime()
    world.slowness[3] = 2.0
    known = np.array([True, True, True, False])
    for _ in range(400):
        estimator.observe(world.seen(alive=known))
        world.tick()
    for _ in range(samples + 1):
        estimator.observe(world.seen())
        world.tick()
    forecast, engine = estimator.forecast(world.seen()), world.engine
    assert 0 < forecast.samples[3] <= world.iterations_per_tick * samples
    for batch, context in ((10, 500), (10, 4000), (50, 2000), (100, 1000)):
        truth = engine.iteration_s(batch, batch * context) * world.slowness
        predicted = forecast.iteration_s(float(batch), float(batch * context))
        assert predicted == pytest.approx(truth, rel=0.15), (batch, context)


def test_what_a_sequence_costs_counts_its_present_context() -> None:
    world, estimator = RolloutEngines(2, seed=0, engine=Engine(compute_s=0.0)), IterationTime()
    errors(world, estimator, 400)
    for context in (500, 4000):
        usage = np.full(2, 20 * context / world.engine.kv_capacity)
        seen = observation(
            trajectory_table([]),
            replica_table(
                2,
                running=np.full(2, 20),
                kv_cache_usage=usage,
                kv_capacity_tokens=np.full(2, world.engine.kv_capacity),
            ),
        )
        forecast = estimator.forecast(seen)
        expected = forecast.sequence_s + forecast.token_s * context
        assert forecast.per_sequence_s == pytest.approx(expected)
        assert forecast.per_sequence_s == pytest.approx(
            [world.engine.read_s * context] * 2, rel=0.2
        )


def test_light_loads_tell_of_heavy_ones() -> None:
    engines, estimator = Engines(2), IterationTime()
    for _ in range(300):
        estimator.observe(engines.seen())
        engines.run(engines.rng.integers(1, 33, 2).astype(np.float64), noise=0.04)
    forecast = estimator.forecast(engines.seen())
    truth = FIXED_S + PER_SEQUENCE_S * 256
    assert forecast.iteration_s(256.0, 0.0) == pytest.approx([truth] * 2, rel=0.1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(0.0, 1.0))
def test_whatever_the_counters_say_times_are_finite_and_never_fall_with_the_load(
    seed: int, count: int, noise: float
) -> None:
    rng, estimator = np.random.default_rng(seed), IterationTime()
    counters, capacity = np.zeros((4, count)), rng.integers(0, 2, count) * 50_000
    for tick in range(25):
        n = rng.integers(0, 60, count)
        tau = np.exp(rng.normal(-4, 3 * noise, count))
        more = np.stack((n, n * tau, n * rng.integers(0, 200, count), rng.integers(0, 9999, count)))
        counters = np.where(rng.random(count) < 0.05, 0.0, counters + more)
        table = replica_table(
            count,
            alive=rng.random(count) < 0.9,
            running=rng.integers(0, 200, count),
            kv_cache_usage=rng.random(count),
            kv_capacity_tokens=capacity,
            iterations=counters[0].astype(np.int64),
            busy_s=counters[1].copy(),
            sequences_run=counters[2].copy(),
            prefill_tokens=counters[3].astype(np.int64),
        )
        seen = observation(trajectory_table([]), table, now_s=0.25 * tick)
        estimator.observe(seen)
        forecast = estimator.forecast(seen)
        for name in ("fixed_s", "per_sequence_s", "sequence_s", "token_s", "knee_s"):
            column = getattr(forecast, name)
            assert np.isfinite(column).all(), name
            assert (column >= 0).all(), name
        assert (forecast.prefill_token_s >= 0).all()
        batch, kv = np.array([[1.0], [50.0], [500.0]]), np.array([[10.0], [1e4], [1e6]])
        times = forecast.iteration_s(batch, kv)
        assert times.shape == (3, count)
        assert (np.diff(times, axis=0) >= 0).all()
        assert (times > 0).all()


def test_the_cost_of_prefill_is_found_where_prompts_come_and_go() -> None:
    engines, estimator = Engines(3), IterationTime()
    prefill_token_s, total = 0.00004, np.zeros(3)
    for _ in range(200):
        estimator.observe(engines.seen(prefill_tokens=total.astype(np.int64)))
        tokens = engines.rng.integers(0, 3, 3) * 800
        engines.run(engines.rng.integers(1, 200, 3).astype(np.float64), noise=0.04)
        engines.counters[1] += tokens * prefill_token_s
        total += tokens
    forecast = estimator.forecast(engines.seen(prefill_tokens=total.astype(np.int64)))
    assert forecast.prefill_token_s == pytest.approx([prefill_token_s] * 3, rel=0.1)
    assert forecast.fixed_s == pytest.approx([FIXED_S] * 3, rel=0.1)


def test_without_prefills_a_prompt_token_is_priced_between_a_sequence_and_twice_a_full_chunk() -> (
    None
):
    engines, estimator = Engines(2), IterationTime()
    watched(engines, estimator)
    forecast = estimator.forecast(engines.seen())
    share = np.maximum(forecast.sequence_s, forecast.fixed_s / 2048)
    assert (forecast.prefill_token_s >= 0.99 * share).all()
    assert (forecast.prefill_token_s <= 2.01 * share).all()


@pytest.mark.benchmark
@pytest.mark.parametrize(("replicas", "allowed_ms"), [(100, 1.0), (1000, 5.0)])
def test_a_fleet_is_observed_and_forecast_in_milliseconds(replicas: int, allowed_ms: float) -> None:
    world, estimator = RolloutEngines(replicas, seed=0), IterationTime()
    took = []
    for _ in range(15):
        world.tick()
        seen = world.seen()
        begin = time.process_time()  # what else runs on the machine does not count
        estimator.observe(seen)
        estimator.forecast(seen)
        took.append(1000 * (time.process_time() - begin))
    print(f"{replicas} replicas: {np.median(took):.2f} ms")  # noqa: T201
    assert np.median(took) <= allowed_ms
