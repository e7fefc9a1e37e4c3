import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.observations import (
    ended_table,
    forecast_of,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats
from steersman.policies.adaptive.trust import Trust

Expected = Callable[[Floats, np.random.Generator], Floats]
"""From what is left of each to what is forecast."""


def perfect(left: Floats, rng: np.random.Generator) -> Floats:
    return left


def backwards(left: Floats, rng: np.random.Generator) -> Floats:
    return np.sort(left)[::-1][left.argsort().argsort()]


def vague(left: Floats, rng: np.random.Generator) -> Floats:
    """All the same."""
    return np.full(len(left), 500.0)


def noisy(left: Floats, rng: np.random.Generator) -> Floats:
    """Off by twice as much as lengths differ."""
    return left * np.exp(rng.normal(0.0, 2.0, len(left)))


def follow(
    trust: Trust, seed: int, expected: Expected, ends: int, n: int = 64, censored: bool = False
) -> list[bool]:
    """Whether it is trusted after so many ends; as soon as one has ended another begins."""
    rng = np.random.default_rng(seed)
    length = rng.lognormal(6.0, 1.0, n)
    ids, left, next_id = np.arange(n), length.copy(), n
    told = [follow_once(trust, ids, expected(left, rng), [], censored)]
    for _ in range(ends):
        i = int(left.argmin())
        over, left = int(ids[i]), left - left[i]
        ids, left = np.delete(ids, i), np.delete(left, i)
        ids, left = np.append(ids, next_id), np.append(left, rng.lognormal(6.0, 1.0))
        next_id += 1
        told.append(follow_once(trust, ids, expected(left, rng), [over], censored))
    return told


def follow_once(
    trust: Trust, ids: np.ndarray, left: Floats, over: list[int], censored: bool = False
) -> bool:
    order = ids.argsort()
    table = trajectory_table([Phase.RUNNING] * len(ids), trajectory_id=ids[order])
    seen = observation(
        replace(table, replica_row=np.zeros(len(ids), dtype=np.int64)),
        replica_table(1),
        ended=ended_table(
            [1] * len(over),
            trajectory_id=np.array(over, dtype=np.int64),
            censored=np.full(len(over), censored),
        ),
    )
    return trust.follow(seen, forecast_of(seen, left[order].tolist()))


@pytest.mark.parametrize("seed", range(10))
def test_reversed_forecasts_are_doubted_within_thirty_ends(seed: int) -> None:
    told = follow(Trust(), seed, backwards, 30)
    assert told[0]
    assert not told[-1]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("expected", [perfect, vague, noisy])
def test_good_and_vague_forecasts_are_never_doubted(seed: int, expected: Expected) -> None:
    assert all(follow(Trust(), seed, expected, 400))


@pytest.mark.parametrize("seed", range(3))
def test_trust_comes_back_when_the_forecasts_are_right_again(seed: int) -> None:
    trust = Trust()
    assert not follow(trust, seed, backwards, 30)[-1]
    assert follow(trust, seed + 100, perfect, 60)[-1]
    assert trust.concordance > 0.5


def test_trust_that_came_back_goes_again() -> None:
    trust = Trust()
    follow(trust, 0, perfect, 1000)
    assert not follow(trust, 1, backwards, 1000)[-1]


def test_who_was_cut_off_says_nothing() -> None:
    trust = Trust()
    assert all(follow(trust, 0, backwards, 60, censored=True))
    assert trust.concordance == 0.5


def test_a_state_that_was_saved_goes_on_the_same() -> None:
    trust = Trust()
    follow(trust, 0, noisy, 20)
    again = Trust.from_state(json.loads(json.dumps(trust.state_dict(), allow_nan=False)))
    assert follow(trust, 1, backwards, 30) == follow(again, 1, backwards, 30)
    assert trust.state_dict() == again.state_dict()
