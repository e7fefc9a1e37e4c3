"""What verifying drafts costs is learned from samples with drafts; the others are not spoiled."""

import json

import numpy as np
import pytest
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators._verify_cost import fit, share_with_drafts
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.estimators.throughput import IterationTime

M, C = 0.012, 0.0002


class Engines:
    """Two by default; an iteration takes M + c b + v0 [drafts] + v1 tokens, with noise."""

    def __init__(
        self, v0: float, v1: float = C, replicas: int = 2, seed: int = 0, noise: float = 0.03
    ) -> None:
        self.v0, self.v1, self.noise = v0, v1, noise
        self.rng, self.now_s = np.random.default_rng(seed), 0.0
        self.speed = np.ones(replicas)
        self.counters = np.zeros((3, replicas))
        self.drafted, self.told = np.zeros((replicas, 8)), np.zeros((2, replicas), dtype=int)

    def run(
        self, batch: int, drafting: int = 0, tokens: int = 0, rows: slice = slice(None), n: int = 20
    ) -> None:
        """`n` iterations of `batch` sequences of which `drafting` draft `tokens` each."""
        tau = M + C * batch + (self.v0 if drafting else 0.0) + self.v1 * drafting * tokens
        tau = self.speed * tau * (1 + self.noise * self.rng.standard_normal(len(self.speed)))
        self.counters[:, rows] += np.stack((n + 0 * tau, n * tau, n * batch + 0 * tau))[:, rows]
        self.drafted[rows, :tokens] += n * drafting
        self.told[:, rows] = [[drafting], [tokens]]
        self.now_s += 0.25

    def seen(self) -> Observation:
        n, busy_s, sequences = self.counters
        replicas = len(self.speed)
        at = np.repeat(np.arange(replicas), 64)
        own = np.where(np.arange(64 * replicas) % 64 < self.told[0][at], self.told[1][at], 0)
        table = trajectory_table([Phase.RUNNING] * len(at), replica_row=at, draft_tokens=own)
        return observation(
            table,
            replica_table(
                replicas,
                iterations=n.astype(np.int64),
                busy_s=busy_s.copy(),
                sequences_run=sequences.copy(),
                drafted_at=self.drafted.astype(np.int64),
                accepted_at=(self.drafted / 2).astype(np.int64),
            ),
            now_s=self.now_s,
        )


def plain(engines: Engines, estimator: IterationTime, ticks: int = 100) -> None:
    for _ in range(ticks):
        estimator.observe(engines.seen())
        engines.run(int(engines.rng.integers(1, 64)))
    estimator.observe(engines.seen())


def test_before_a_draft_was_verified_it_costs_a_sequence_and_nothing_more() -> None:
    engines, estimator = Engines(v0=0.005), IterationTime()
    plain(engines, estimator)
    f = estimator.forecast(engines.seen())
    assert f.verify_s.tolist() == [0.0, 0.0]
    assert f.verify_token_s.tolist() == f.sequence_s.tolist()


@pytest.mark.parametrize("v0", [0.001, 0.005])
@pytest.mark.parametrize("v1", [0.0001, 0.0006])
def test_both_costs_are_learned_where_batches_and_drafts_vary(v0: float, v1: float) -> None:
    engines, estimator = Engines(v0, v1), IterationTime()
    plain(engines, estimator)
    for tick in range(300):
        batch = int(engines.rng.integers(1, 64))
        if tick % 2:
            engines.run(batch, int(engines.rng.integers(1, batch + 1)), 1 + tick % 8)
        else:
            engines.run(batch)
        estimator.observe(engines.seen())
    f = estimator.forecast(engines.seen())
    assert f.verify_s == pytest.approx(v0, abs=0.0007)
    assert f.verify_token_s == pytest.approx(v1, rel=0.12)
    assert f.fixed_s == pytest.approx(M, rel=0.05)
    assert f.sequence_s == pytest.approx(C, rel=0.1)


def test_one_probe_of_sixteen_iterations_tells_most_of_a_high_price() -> None:
    engines, estimator = Engines(v0=0.006), IterationTime()
    plain(engines, estimator)
    engines.run(10, drafting=1, tokens=4, n=16)
    estimator.observe(engines.seen())
    f = estimator.forecast(engines.seen())
    assert (f.verify_s + 4 * f.verify_token_s > 0.6 * (0.006 + 4 * C)).all()


def test_a_replica_that_never_drafted_is_expected_to_pay_as_the_others_do() -> None:
    engines, estimator = Engines(v0=0.004, replicas=3), IterationTime()
    engines.speed = np.array([1.0, 1.0, 2.0])
    plain(engines, estimator)
    for _ in range(60):
        engines.run(20, drafting=3, tokens=4, rows=slice(0, 2))
        estimator.observe(engines.seen())
    f = estimator.forecast(engines.seen())
    assert f.verify_s[2] == pytest.approx(2 * f.verify_s[0], rel=0.15)


def test_samples_with_drafts_leave_the_plain_model_as_it_was() -> None:
    engines, estimator = Engines(v0=0.01, v1=0.001), IterationTime()
    plain(engines, estimator)
    before, health = estimator.forecast(engines.seen()), estimator.health()
    for _ in range(200):
        engines.run(30, drafting=20, tokens=8)
        estimator.observe(engines.seen())
    after = estimator.forecast(engines.seen())
    for name in ("fixed_s", "sequence_s", "token_s", "samples", "relative_error"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    assert estimator.health() == health


def test_a_fleet_that_has_always_drafted_is_not_unknown_and_is_corrected_by_a_plain_sample() -> (
    None
):
    engines, estimator = Engines(v0=0.0, noise=0.0), IterationTime()
    for tick in range(60):
        estimator.observe(engines.seen())
        engines.run(1 + tick % 40, drafting=1 + tick % 40, tokens=4)
    guessed = estimator.forecast(engines.seen())
    assert guessed.fixed_s == pytest.approx(M, rel=0.05)
    assert (guessed.samples > 0).all()
    engines.v0 = 0.02
    for tick in range(60):
        estimator.observe(engines.seen())
        engines.run(1 + tick % 40, drafting=1 + tick % 40, tokens=4)
    estimator.observe(engines.seen())
    engines.run(20)
    estimator.observe(engines.seen())
    f = estimator.forecast(engines.seen())
    assert f.fixed_s + 20 * f.sequence_s == pytest.approx(M + 20 * C, rel=0.02)


def test_a_slower_replica_verifies_more_slowly_after_the_alarm() -> None:
    engines, estimator = Engines(v0=0.005), IterationTime()
    plain(engines, estimator)
    for _ in range(40):
        engines.run(20, drafting=2, tokens=4)
        estimator.observe(engines.seen())
    before = estimator.forecast(engines.seen()).verify_s.copy()
    engines.speed[:] = 3.0
    for _ in range(30):
        engines.run(20)
        estimator.observe(engines.seen())
    assert estimator.forecast(engines.seen()).verify_s == pytest.approx(3 * before, rel=0.25)


def test_a_state_that_was_saved_goes_on_the_same() -> None:
    engines, estimator = Engines(v0=0.005), IterationTime()
    plain(engines, estimator, ticks=10)
    engines.run(20, drafting=2, tokens=4)
    estimator.observe(engines.seen())
    again = IterationTime()
    again.load_state_dict(json.loads(json.dumps(estimator.state_dict(), allow_nan=False)))
    engines.run(20, drafting=2, tokens=4)
    for one in (estimator, again):
        one.observe(engines.seen())
    a, b = (one.forecast(engines.seen()) for one in (estimator, again))
    np.testing.assert_array_equal(a.verify_s, b.verify_s)
    np.testing.assert_array_equal(a.verify_token_s, b.verify_token_s)


def test_small_batches_in_quiet_times_do_not_make_deep_drafts_seem_dear() -> None:
    """Engines that share cores verify the more slowly the busier the others are, and a batch is
    small when they are idle: what that adds per drafted token is no cost of the token."""
    engines, estimator, busier = Engines(v0=0.0), IterationTime(), 0.0006
    plain(engines, estimator)
    for tick in range(120):
        drafting = 1 + tick % 6
        engines.v0 = 0.003 + busier * drafting
        engines.run(drafting, drafting, 1)
        estimator.observe(engines.seen())
    f = estimator.forecast(engines.seen())
    assert (f.verify_token_s < 0.6 * (C + busier)).all()
    assert (f.verify_s > 0.003).all()


def test_of_iterations_that_draft_now_and_then_the_share_with_any_is_counted() -> None:
    rng, n = np.random.default_rng(0), 20_000
    for asked, found in ((1, 0.3), (5, 0.1), (20, 0.2), (3, 1.0)):
        drafts = rng.random((n, asked)) < found
        each = np.array([drafts.sum() / n])
        for told in (1.0, 0.3):  # in this part of the iterations
            share = share_with_drafts(told * each, np.array([told * asked]), np.array([asked]))
            assert share[0] == pytest.approx(told * drafts.any(axis=1).mean(), abs=0.01)
    unknown = np.zeros(1)
    assert share_with_drafts(np.array([0.25]), unknown, np.array([0])) == pytest.approx(0.25)


def test_no_cost_is_below_nothing() -> None:
    gram = np.tile(np.array([[50.0, 300.0], [300.0, 2500.0]]), (2, 1, 1)) / M**2
    cheaper = np.tile(np.array([-40.0, -300.0]), (2, 1)) / M
    costs = fit(gram, cheaper, np.full(2, M), np.full(2, C))
    assert (costs >= 0).all()
    assert fit(gram[:0], cheaper[:0], np.zeros(0), np.zeros(0)).shape == (0, 2)
