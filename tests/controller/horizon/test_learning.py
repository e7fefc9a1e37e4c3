"""What siblings tell of one another in a simulated world."""

from dataclasses import replace

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.horizon.ahead import simulated_ends
from steersman.controller.horizon.learning import Posterior, Prior
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Observation
from steersman.policies.adaptive.draws import Z90
from steersman.policies.adaptive.plans import DEFAULT, Order, Plan

GROUP, MEDIAN, SIGMA = 8, 1000.0, 0.8
RHO = 0.7


def alike(groups: int, rho: float = RHO, slots: int = 8) -> tuple[Observation, Forecast]:
    """All waits; every group is the same to the forecast, log-normal, its members alike."""
    n = groups * GROUP
    seen = observation(
        trajectory_table([Phase.QUEUED] * n, GROUP, max_new_tokens=np.full(n, 1 << 20)),
        replica_table(2, max_num_seqs=np.full(2, slots)),
    )
    forecast = forecast_of(seen, [MEDIAN * np.exp(SIGMA**2 / 2)] * n)
    quantiles = MEDIAN * np.exp(SIGMA * Z90 * np.array([-1.0, 0.0, 1.0]))
    length = replace(
        forecast.length,
        remaining_tokens=np.tile(quantiles, (n, 1)),
        sibling_correlation=np.full(groups, rho),
    )
    return seen, replace(forecast, length=length)


def told(written: list[float], ended: list[bool], order: Order = Order.LONGEST) -> Floats:
    """(q,) news of one group's others, when its first have written and ended so."""
    seen, forecast = alike(1)
    k = len(written)
    tokens, over = np.zeros((1, GROUP)), np.zeros((1, GROUP), dtype=np.bool_)
    tokens[0, :k], over[0, :k] = written, ended
    begun = np.arange(GROUP)[None] < k
    prior = Prior.of(seen, forecast, np.arange(GROUP))
    return Posterior(prior, tokens, begun, over).news(order, np.arange(k, GROUP))[0]


@pytest.mark.parametrize("z", [-1.5, 0.0, 0.5, 2.0])
def test_an_end_tells_as_much_as_in_a_normal_of_that_correlation(z: float) -> None:
    (news, *_) = told([MEDIAN * np.exp(SIGMA * z)], [True])
    mean, variance = RHO * z, 1 - RHO**2
    assert news == pytest.approx(SIGMA * mean + SIGMA**2 * (variance - 1) / 2)
    (upper, *_) = told([MEDIAN * np.exp(SIGMA * z)], [True], Order.OPTIMISTIC)
    assert upper == pytest.approx(SIGMA * (mean + Z90 * np.sqrt(variance) - Z90))


def test_one_that_goes_on_tells_what_a_truncated_normal_does() -> None:
    """Against draws: siblings of a member that has written more than the median and not ended."""
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal(400_000), rng.standard_normal((2, 400_000))
    z = np.sqrt(RHO) * common + np.sqrt(1 - RHO) * own
    sibling = z[1][z[0] > 0.0]
    (news, *_) = told([MEDIAN], [False])
    expected = SIGMA * sibling.mean() + SIGMA**2 * (sibling.var() - 1) / 2
    assert news == pytest.approx(expected, abs=0.02)


def test_the_longer_siblings_go_on_the_longer_the_rest_is_and_short_ends_say_the_opposite() -> None:
    news = [told([tokens] * 3, [False] * 3)[0] for tokens in (0.5, 10.0, 1000.0, 3000.0, 30000.0)]
    assert news == sorted(news)
    assert news[0] == pytest.approx(0.0, abs=0.02)
    assert told([200.0] * 3, [True] * 3)[0] < -0.5


def test_nothing_is_learned_where_siblings_are_not_alike_or_all_is_known() -> None:
    for rho, spread in ((0.0, 1.0), (RHO, 0.0)):
        seen, forecast = alike(1, rho)
        q = forecast.length.remaining_tokens
        known = replace(forecast.length, remaining_tokens=q[:, 1:2] + spread * (q - q[:, 1:2]))
        prior = Prior.of(seen, replace(forecast, length=known), np.arange(GROUP))
        first = np.arange(GROUP)[None] < 4
        now = Posterior(prior, 5000.0 * first, first, first)
        news = now.news(Order.LONGEST, np.arange(4, GROUP))
        assert news == pytest.approx(0.0, abs=1e-9)


def test_to_hold_back_pays_where_siblings_tell_who_is_long() -> None:
    """In many waves of groups of which nothing is known beforehand."""
    plans = (DEFAULT, Plan("hold", True, Order.OPTIMISTIC))
    for rho, gains in ((0.95, True), (0.0, False)):
        seen, forecast = alike(24, rho)
        default, hold = simulated_ends(seen, forecast, plans, 16).mean(axis=1)
        assert (hold < 0.95 * default) == gains


def test_one_that_goes_on_is_expected_to_write_what_a_truncated_log_normal_does() -> None:
    seen, forecast = alike(1)
    drawn = MEDIAN * np.exp(SIGMA * np.random.default_rng(0).standard_normal(400_000))
    written = np.array([[0.0, 100.0, 1000.0, 4000.0, 0.0, 0.0, 0.0, 300.0]])
    begun = written > 0
    ended = np.arange(GROUP)[None] == GROUP - 1
    prior = Prior.of(seen, forecast, np.arange(GROUP))
    (expected,) = Posterior(prior, written, begun, ended).expected()
    assert expected[1:4] == pytest.approx(
        [drawn[drawn > tokens].mean() for tokens in (100.0, 1000.0, 4000.0)], rel=0.02
    )
    assert expected[7] == 300.0
    assert expected[0] > MEDIAN * np.exp(SIGMA**2 / 2)  # its siblings go on
