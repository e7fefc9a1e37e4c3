"""Regret of made-up seconds, where it is known how it grows."""

import numpy as np
import pytest

from steersman.controller.regret.curves import (
    best_of,
    changes,
    growth,
    regret,
    steps_until_near,
)

STEPS = 300
STEP = np.arange(1, STEPS + 1)
BEST = np.random.default_rng(0).gamma(20.0, 0.5, (2, STEPS))
"""Noisy seconds of the best fixed entry, about 10 each."""


def test_a_policy_that_learns_grows_sublinearly_and_one_that_does_not_linearly() -> None:
    learning = regret(BEST + 2.0 / np.sqrt(STEP), BEST, "best")
    stubborn = regret(BEST + 0.7, BEST, "best")
    assert learning.growth == pytest.approx(0.5, abs=0.1)
    assert stubborn.growth == pytest.approx(1.0, abs=0.02)


def test_a_mistake_of_the_beginning_does_not_grow() -> None:
    own = BEST + np.where(STEP <= 20, 5.0, 0.0)
    early = regret(own, BEST, "best")
    assert early.growth == pytest.approx(0.0, abs=1e-6)
    assert early.total_s == pytest.approx(100.0)
    assert early.thirds_s == pytest.approx((1.0, 0.0, 0.0))


def test_a_regret_that_is_not_positive_has_no_exponent() -> None:
    assert regret(BEST - 0.1, BEST, "best").growth is None
    assert regret(BEST, BEST, "best").growth is None
    crossing = np.cumsum(np.where(STEP < 200, 1.0, -5.0))
    assert growth(crossing) is None


def test_thirds_are_seconds_per_step_and_shares_of_the_others() -> None:
    other = np.full((1, 9), 10.0)
    own = other + np.repeat([3.0, 2.0, -1.0], 3)
    found = regret(own, other, "best")
    assert found.thirds_s == pytest.approx((3.0, 2.0, -1.0))
    assert found.thirds_share == pytest.approx((0.3, 0.2, -0.1))
    assert found.cumulative_s[-1] == found.total_s == pytest.approx(12.0)


def test_regret_is_the_mean_over_seeds() -> None:
    other = np.full((2, 4), 10.0)
    own = other + np.array([[1.0], [3.0]])
    assert regret(own, other, "best").cumulative_s == pytest.approx((2.0, 4.0, 6.0, 8.0))


def test_the_best_fixed_entry_is_chosen_among_the_fixed_ones_over_all_seeds() -> None:
    seconds = {
        "judged": np.full((2, 3), 1.0),
        "steady": np.full((2, 3), 2.5),
        "lucky": np.array([[1.0] * 3, [5.0] * 3]),
    }
    assert best_of(seconds, ["steady", "lucky"]) == "steady"


def test_each_regime_has_its_best_entry_and_its_steps_until_near_it() -> None:
    early = np.where(np.arange(20) < 10, 10.0, 14.0)[None]
    late = np.where(np.arange(20) < 10, 14.0, 10.0)[None]
    judged = early.copy()
    judged[0, 14:] = 10.2  # it notices the change after four steps
    seconds = {"judged": judged, "early": early, "late": late}
    first, second = changes(seconds, "judged", ["early", "late"], [(0, "a"), (10, "b")])
    assert (first.best, first.steps_until_near) == ("early", (0,))
    assert (second.step, second.regime, second.best) == (10, "b", "late")
    assert second.steps_until_near == (3,)  # two of the three steps from there are near
    assert second.regret_s == pytest.approx(4 * 4.0 + 6 * 0.2)


def test_one_lucky_step_is_not_an_adaptation() -> None:
    best = np.full(8, 10.0)
    own = np.array([20.0, 10.0, 20.0, 20.0, 10.4, 10.4, 20.0, 10.0])
    assert steps_until_near(own, best) == 3
    assert steps_until_near(np.full(8, 20.0), best) is None
    assert steps_until_near(best[:2], best[:2]) is None
