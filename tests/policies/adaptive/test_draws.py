from dataclasses import replace

import numpy as np
import pytest
from support.observations import (
    forecast_of,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.policies.adaptive.draws import scenarios

COUNT = 32


def waiting(n: int, group_size: int = 1, cap: int = 1 << 20) -> Observation:
    table = trajectory_table([Phase.QUEUED] * n, group_size, max_new_tokens=np.full(n, cap))
    return observation(table, replica_table(1))


def told(seen: Observation, quantiles: tuple[float, float, float], rho: float = 0.0) -> Forecast:
    """The same of everybody."""
    n = len(seen.trajectories)
    forecast = forecast_of(seen, np.full(n, quantiles[1]).tolist())
    length = replace(
        forecast.length,
        remaining_tokens=np.tile(quantiles, (n, 1)),
        sibling_correlation=np.full(len(seen.groups), rho),
    )
    return replace(forecast, length=length)


def drawn(seen: Observation, forecast: Forecast, count: int = COUNT) -> np.ndarray:
    return scenarios(seen, forecast, np.arange(len(seen.trajectories)), count)


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_scenarios_have_the_forecasts_quantiles(rho: float) -> None:
    """Also where the tail is longer than the other side."""
    seen = waiting(8000)
    found = np.quantile(drawn(seen, told(seen, (500.0, 1000.0, 6000.0), rho)), (0.1, 0.5, 0.9))
    np.testing.assert_allclose(found, (500, 1000, 6000), rtol=0.03)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.65, 0.95])
def test_siblings_are_as_alike_as_told_and_others_not_at_all(rho: float) -> None:
    seen = waiting(8000, group_size=2)
    log = np.log(drawn(seen, told(seen, (500.0, 1000.0, 2000.0), rho)))
    first, second = log[:, ::2].ravel(), log[:, 1::2].ravel()
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(rho, abs=0.02)
    assert np.corrcoef(first, np.roll(second, 1))[0, 1] == pytest.approx(0.0, abs=0.02)


def test_an_id_has_the_same_luck_at_every_tick_whoever_else_is_there() -> None:
    seen = waiting(50, group_size=5)
    now = drawn(seen, told(seen, (500.0, 1000.0, 2000.0), 0.5))
    later = observation(
        trajectory_table(
            [Phase.RUNNING] * 10, 5, trajectory_id=np.arange(20, 30), max_new_tokens=[1 << 20] * 10
        ),
        replica_table(1),
        now_s=2000.0,
        groups=group_table(2, group_id=[4, 5], size=[5, 5]),
    )
    again = drawn(later, told(later, (500.0, 1000.0, 2000.0), 0.5))
    np.testing.assert_array_equal(again, now[:, 20:30])


def test_scenarios_come_in_pairs_of_opposite_luck() -> None:
    seen = waiting(40, group_size=4)
    log = np.log(drawn(seen, told(seen, (500.0, 1000.0, 2000.0), 0.5)))
    half = COUNT // 2
    np.testing.assert_allclose(log[:half] + log[half:], 2 * np.log(1000.0))


def test_nothing_is_drawn_beyond_what_the_cap_leaves() -> None:
    written = np.arange(300)
    table = trajectory_table(
        [Phase.RUNNING] * 300, generated_tokens=written, max_new_tokens=np.full(300, 1200)
    )
    seen = observation(table, replica_table(1))
    lengths = drawn(seen, told(seen, (500.0, 1000.0, 5000.0)))
    assert (lengths <= 1200 - written).all()
    assert (lengths == 1200 - written).any()


def test_what_is_known_for_certain_is_drawn_as_it_is() -> None:
    seen = waiting(5)
    np.testing.assert_allclose(
        drawn(seen, forecast_of(seen, [10, 20, 30, 40, 50])),
        1.0 * np.tile([10, 20, 30, 40, 50], (COUNT, 1)),
    )


def test_nothing_left_is_one_token() -> None:
    seen = waiting(3)
    np.testing.assert_allclose(drawn(seen, Forecast.unknown(seen)), 1.0)
