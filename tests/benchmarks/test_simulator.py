"""A step of 1e5 trajectories on 100 replicas, a decision every 0.5 s: 0.3 s of one core.

`steersman bench simulator --trajectories 1e6 --replicas 1e3` is the promised size.
"""

import sys

import pytest

from steersman.mechanisms.simulated.benchmark import Run, run

LIMIT_S = 0.3
"""Twice what it takes alone on a core of 2026."""
GROWTH = 2.0

pytestmark = pytest.mark.benchmark


def best(trajectories: int, replicas: int) -> Run:
    return min((run(trajectories, replicas) for _ in range(3)), key=lambda run: run.seconds)


def test_a_big_step_is_simulated_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    small, big = best(10_000, 10), best(100_000, 100)
    with capsys.disabled():
        for result in (small, big):
            each_us = 1e6 * result.seconds / result.trajectories
            sys.stdout.write(
                f"\n{result.trajectories}: {result.seconds:.3f} s, {each_us:.2f} us each"
            )
    assert big.finished == big.trajectories
    assert 0 < big.preemptions < big.trajectories
    assert big.seconds <= LIMIT_S
    assert big.seconds / big.trajectories < GROWTH * small.seconds / small.trajectories
