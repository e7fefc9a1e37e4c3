from dataclasses import replace

import numpy as np
import pytest
from support.throughput_world import (
    FIXED_S,
    PER_SEQUENCE_S,
    Engines,
    RolloutEngines,
    errors,
    watched,
)

from steersman.estimators.throughput import IterationTime

SETTLE, BEFORE, AFTER, LATER = 150, 450, 200, 400


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slowness", [1.25, 1.0 / 1.25], ids=["slower", "faster"])
def test_one_sample_ahead_is_within_noise_before_and_after_a_sudden_change_of_speed(
    seed: int, slowness: float
) -> None:
    """The noise alone, 4 %, is a mean error of 3.2 %."""
    world, estimator = RolloutEngines(2, seed), IterationTime()
    errors(world, estimator, SETTLE)
    before = errors(world, estimator, BEFORE).mean()
    world.slowness *= slowness
    after = errors(world, estimator, AFTER)
    later = errors(world, estimator, LATER).mean()
    print(f"MAPE {before:.3f}, {after.mean():.3f} after, {later:.3f} later")  # noqa: T201
    assert before <= 0.04
    assert after.mean() <= 0.12
    assert after[8:].mean() <= 0.05, "caught within a few samples, not within two hundred"
    assert later <= 0.04
    assert estimator.health()["mape"] == pytest.approx(later, abs=0.01)


def test_one_slow_replica_says_nothing_of_the_others() -> None:
    world, estimator = RolloutEngines(4, seed=1), IterationTime()
    errors(world, estimator, 400)
    world.slowness[0] = 1.25
    after = errors(world, estimator, 100)
    assert after[8:, 0].mean() <= 0.06
    assert after[:, 1:].mean() <= 0.045


def test_two_stalls_in_a_row_do_not_change_what_is_known() -> None:
    engines, estimator = Engines(2), IterationTime()
    watched(engines, estimator)
    before = estimator.forecast(engines.seen())
    for _ in range(2):
        engines.run(np.full(2, 50.0))
        engines.counters[1] += 60.0
        estimator.observe(engines.seen())
    after = estimator.forecast(engines.seen())
    assert after.fixed_s == pytest.approx(before.fixed_s, rel=0.1)
    assert after.iteration_s(50.0, 0.0) == pytest.approx(before.iteration_s(50.0, 0.0), rel=0.1)


def test_a_counter_gone_wild_does_not_change_what_is_known() -> None:
    engines, estimator = Engines(2), IterationTime()
    watched(engines, estimator)
    before = estimator.forecast(engines.seen())
    for batch in (20.0, 150.0):
        engines.run(np.full(2, batch))
        engines.counters[0] += 200  # many iterations in no time
        estimator.observe(engines.seen())
    after = estimator.forecast(engines.seen())
    for batch in (1.0, 100.0):
        expected = before.iteration_s(batch, 0.0)
        assert after.iteration_s(batch, 0.0) == pytest.approx(expected, rel=0.3)


def test_a_change_that_is_none_of_speed_is_learned_soon_after_its_alarm() -> None:
    engines, estimator = Engines(1), IterationTime()
    watched(engines, estimator, ticks=600)
    engines.fixed_s *= 2
    watched(engines, estimator, ticks=150)
    forecast = estimator.forecast(engines.seen())
    assert forecast.fixed_s == pytest.approx([2 * FIXED_S], rel=0.1)
    assert forecast.per_sequence_s == pytest.approx([PER_SEQUENCE_S], rel=0.2)


def test_reports_between_two_iterations_do_no_harm() -> None:
    engines, estimator = Engines(2), IterationTime()
    for _ in range(2000):
        seen = engines.seen()
        late_s = 0.5 * FIXED_S * engines.rng.random(2)  # an iteration begun, not yet counted
        busy_s = np.maximum(seen.replicas.busy_s + late_s, 0.0)
        table = replace(seen.replicas, busy_s=busy_s)
        estimator.observe(replace(seen, replicas=table))
        engines.run(engines.rng.integers(1, 200, 2).astype(np.float64), iterations=2, noise=0.04)
    assert estimator.health()["mape"] <= 0.05
    assert estimator.forecast(engines.seen()).fixed_s == pytest.approx([FIXED_S] * 2, rel=0.05)


def test_a_load_never_seen_is_no_change_of_speed() -> None:
    engines, estimator = Engines(1), IterationTime()
    engines.fixed_s[:], engines.per_sequence_s[:] = 0.004, 0.0008
    for batch in [100.0] * 200 + [2.0] * 50:
        estimator.observe(engines.seen())
        engines.run(np.full(1, batch), noise=0.04 * (batch > 2))
    estimator.observe(engines.seen())
    forecast = estimator.forecast(engines.seen())
    assert forecast.iteration_s(100.0, 0.0) == pytest.approx(0.084, rel=0.1)
    assert forecast.iteration_s(2.0, 0.0) == pytest.approx(0.0056, rel=0.1)
