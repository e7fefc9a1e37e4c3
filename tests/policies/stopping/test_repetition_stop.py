"""Kimi's rule: loops end early, everything else is left alone."""

from dataclasses import replace

import numpy as np
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.policies.stopping.repetition_stop import RepetitionStop

TOKENS = 64
"""Written per tick."""


def seen_at(tick: int, share: list[float], wrote: int = TOKENS) -> Observation:
    n = len(share)
    table = trajectory_table(
        [Phase.RUNNING] * n,
        replica_row=np.zeros(n, dtype=np.int64),
        generated_tokens=np.full(n, tick * wrote),
        repeated_share=np.array(share),
    )
    return observation(table, replica_table(1), tick=tick)


def stopped_at(policy: RepetitionStop, shares: list[list[float]]) -> dict[int, int]:
    """First tick at which each trajectory is stopped, for one row of shares per tick."""
    found: dict[int, int] = {}
    rng = np.random.default_rng(0)
    for tick, share in enumerate(shares):
        seen = seen_at(tick, share)
        for d in policy.decide(seen, Forecast.unknown(seen), rng):
            found.setdefault(d.trajectory_id, tick)
    return found


def test_a_loop_is_stopped_when_its_patience_is_over_and_not_before() -> None:
    patience = 512
    found = stopped_at(RepetitionStop(patience_tokens=patience), [[0.9, 0.1]] * 20)
    assert found == {0: patience // TOKENS}


def test_what_does_not_repeat_is_never_stopped_however_long_it_is() -> None:
    rng = np.random.default_rng(1)
    shares = [(0.8 * rng.random(50)).tolist() for _ in range(400)]
    assert stopped_at(RepetitionStop(), shares) == {}


def test_writing_something_new_in_between_starts_the_patience_anew() -> None:
    shares = [[0.9]] * 8 + [[0.2]] + [[0.9]] * 7
    assert stopped_at(RepetitionStop(patience_tokens=512), shares) == {}


def test_an_observation_without_the_figure_neither_counts_nor_forgives() -> None:
    shares = [[0.9]] * 8 + [[np.nan]] * 5 + [[0.9]] * 3
    assert stopped_at(RepetitionStop(patience_tokens=512), shares) == {0: 13}


def test_a_trajectory_seen_first_in_the_middle_of_a_loop_has_all_its_patience() -> None:
    policy, rng = RepetitionStop(patience_tokens=512), np.random.default_rng(0)
    for tick in range(100, 108):
        seen = seen_at(tick, [0.99])
        assert policy.decide(seen, Forecast.unknown(seen), rng) == []


def test_one_that_has_left_its_replica_is_not_stopped() -> None:
    policy, rng = RepetitionStop(), np.random.default_rng(0)
    for tick in range(20):
        seen = seen_at(tick, [0.9])
        gone = replace(seen.trajectories, phase=np.array([Phase.LEAVING]))
        seen = replace(seen, trajectories=gone)
        assert policy.decide(seen, Forecast.unknown(seen), rng) == []
