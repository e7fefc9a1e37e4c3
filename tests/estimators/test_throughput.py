import json

import numpy as np
import pytest
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.observation import Observation
from steersman.estimators.throughput import AffineThroughput

FIXED_S, PER_SEQUENCE_S = 0.012, 0.00015


class Engines:
    """Counters of engines that obey tau(b) = M + c b, with noise."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.count, self.now_s = count, 0.0
        self.fixed_s, self.per_sequence_s = np.full(count, FIXED_S), np.full(count, PER_SEQUENCE_S)
        self.counters = np.zeros((3, count))

    def run(self, batch: np.ndarray, iterations: int = 20, noise: float = 0.1) -> None:
        tau = self.fixed_s + self.per_sequence_s * batch
        tau = tau * (1 + noise * self.rng.standard_normal(self.count))
        self.counters += np.stack(
            (np.full(self.count, iterations), iterations * tau, iterations * batch)
        )
        self.now_s += 0.25

    def seen(self, **columns: object) -> Observation:
        return observation(
            trajectory_table([]),
            replica_table(
                self.count,
                iterations=self.counters[0].astype(np.int64),
                busy_s=self.counters[1].copy(),
                sequences_run=self.counters[2].copy(),
                **columns,
            ),
            now_s=self.now_s,
        )


def watched(engines: Engines, estimator: AffineThroughput, ticks: int = 200) -> None:
    for _ in range(ticks):
        estimator.observe(engines.seen())
        engines.run(engines.rng.integers(1, 200, engines.count).astype(np.float64))
    estimator.observe(engines.seen())


def test_m_and_c_are_recovered_from_noisy_iterations() -> None:
    engines, estimator = Engines(4), AffineThroughput()
    watched(engines, estimator)
    forecast = estimator.forecast(engines.seen())
    assert forecast.fixed_s == pytest.approx([FIXED_S] * 4, rel=0.1)
    assert forecast.per_sequence_s == pytest.approx([PER_SEQUENCE_S] * 4, rel=0.1)
    assert (forecast.samples > 1000).all()


def test_a_slow_replica_is_told_from_the_others() -> None:
    engines, estimator = Engines(4), AffineThroughput()
    engines.fixed_s[2] *= 2
    watched(engines, estimator)
    assert estimator.forecast(engines.seen()).fixed_s[2] == pytest.approx(2 * FIXED_S, rel=0.1)


def test_without_data_the_prior_is_answered() -> None:
    forecast = AffineThroughput().forecast(Engines(3).seen())
    assert (forecast.fixed_s > 0).all()
    assert (forecast.per_sequence_s > 0).all()
    assert (forecast.prefill_token_s > 0).all()
    assert (forecast.samples == 0).all()


def test_a_new_replica_starts_from_the_fleets_fit() -> None:
    engines, estimator = Engines(3), AffineThroughput()
    watched(engines, estimator)
    forecast = estimator.forecast(observation(trajectory_table([]), replica_table(4)))
    assert forecast.samples[3] == 0
    assert forecast.fixed_s[3] == pytest.approx(FIXED_S, rel=0.1)


def test_one_batch_size_alone_gives_the_right_time_at_that_batch() -> None:
    engines, estimator = Engines(2), AffineThroughput()
    for _ in range(50):
        estimator.observe(engines.seen())
        engines.run(np.full(2, 100.0), noise=0.0)
    forecast = estimator.forecast(engines.seen())
    expected = FIXED_S + PER_SEQUENCE_S * 100
    assert forecast.fixed_s + 100 * forecast.per_sequence_s == pytest.approx([expected] * 2)


def test_dead_stale_and_restarted_replicas_do_not_corrupt_the_fit() -> None:
    engines, estimator = Engines(4), AffineThroughput()
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
    engines, estimator = Engines(2), AffineThroughput()
    engines.per_sequence_s[:] = -0.00005
    watched(engines, estimator)
    forecast = estimator.forecast(engines.seen())
    assert (forecast.fixed_s >= 0).all()
    assert (forecast.per_sequence_s >= 0).all()


def test_the_state_survives_json() -> None:
    engines, first, second = Engines(3), AffineThroughput(), AffineThroughput()
    watched(engines, first, ticks=20)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    engines.run(np.full(3, 7.0))
    for estimator in (first, second):
        estimator.observe(engines.seen())
    a, b = first.forecast(engines.seen()), second.forecast(engines.seen())
    assert (a.fixed_s == b.fixed_s).all()
    assert (a.per_sequence_s == b.per_sequence_s).all()


def test_a_changed_speed_is_learned_after_a_drift() -> None:
    engines, estimator = Engines(2), AffineThroughput()
    watched(engines, estimator)
    engines.fixed_s *= 3
    estimator.reset_on_drift(0.01)
    watched(engines, estimator, ticks=50)
    assert estimator.forecast(engines.seen()).fixed_s == pytest.approx([3 * FIXED_S] * 2, rel=0.15)
