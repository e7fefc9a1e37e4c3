"""C(q) of one run: right in the mean, where reading off the first lucky evaluation is not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.quality_study import SyntheticStudy, true_cost

from steersman.controller.evaluate.curve import Curve, fit, peak_of
from steersman.estimators.observation import Floats

TARGET = 0.7


def first_crossing(cost: Floats, quality: Floats, target: float) -> float:
    """What one is tempted to do: the first evaluation that is good enough, interpolated."""
    above = np.flatnonzero(quality >= target)
    if not len(above):
        return math.inf
    at = int(above[0])
    if at == 0:
        return float(cost[0])
    return float(np.interp(target, quality[at - 1 : at + 1], cost[at - 1 : at + 1]))


def test_without_noise_the_cost_of_a_quality_is_the_true_one() -> None:
    cost = np.linspace(0.0, 10.0, 21)
    curve = fit(cost, cost / 10, np.full(21, 1e6))
    assert curve.cost_of(np.array([0.0, 0.33, 1.0])) == pytest.approx([0.0, 3.3, 10.0])
    assert curve.quality_at(np.array([0.0, 3.3, 10.0])) == pytest.approx([0.0, 0.33, 1.0])


def test_the_first_crossing_is_biased_low_and_the_fitted_curve_is_not() -> None:
    rng = np.random.default_rng(0)
    design = SyntheticStudy(arms={"one": 1.0}, seeds=200, seed_sd=0, run_sd=0, evaluations=60,
                            evaluated=100)  # fmt: skip
    runs = design.study(rng).arm("one").values()
    fitted = [float(run.curves["tokens"].cost_of(np.array(TARGET))) for run in runs]
    crossed = [first_crossing(run.tokens, run.quality, TARGET) for run in runs]
    truth = true_cost(TARGET)
    assert np.mean(crossed) / truth < 0.85
    assert np.mean(fitted) / truth == pytest.approx(1.0, abs=0.02)


def test_the_bias_of_the_first_crossing_grows_with_the_number_of_evaluations() -> None:
    means = []
    for evaluations in (15, 60, 240):
        design = SyntheticStudy(arms={"one": 1.0}, seeds=60, seed_sd=0, run_sd=0,
                                evaluations=evaluations, evaluated=100)  # fmt: skip
        runs = design.study(np.random.default_rng(1)).arm("one").values()
        means.append(np.mean([first_crossing(run.tokens, run.quality, TARGET) for run in runs]))
    assert means[0] > means[1] > means[2]


def test_a_quality_that_is_never_reached_costs_infinitely_much() -> None:
    curve = fit(np.arange(5.0), np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.full(5, 1000.0))
    assert np.isinf(curve.cost_of(np.array([0.51]))).all()
    assert curve.budget == 4


def test_a_rise_of_next_to_nothing_is_no_division_by_nothing() -> None:
    curve = fit(np.arange(3.0), np.array([0.0, 5e-324, 1e-320]), np.ones(3))
    assert np.isinf(curve.cost_of(np.array([1.0]))).all()
    assert curve.cost_of(np.array([0.0])) == pytest.approx([0.0])


def test_an_evaluation_on_few_samples_weighs_little() -> None:
    cost, quality = np.arange(3.0), np.array([0.2, 0.9, 0.4])
    few = fit(cost, quality, np.array([1000.0, 10.0, 1000.0]))
    many = fit(cost, quality, np.array([1000.0, 1000.0, 1000.0]))
    assert few.quality[-1] < 0.41 < 0.6 < many.quality[-1]


def test_a_run_that_collapsed_had_reached_its_peak() -> None:
    rng = np.random.default_rng(2)
    level = np.concatenate([np.linspace(0.2, 0.8, 20), np.full(20, 0.3)])
    quality = rng.binomial(500, level) / 500
    curve = fit(np.arange(40.0), quality, np.full(40, 500.0))
    assert abs(peak_of(quality, np.full(40, 500.0)) - 20) <= 1
    assert curve.cost_of(np.array(0.7)) == pytest.approx(19 * 5 / 6, abs=1.5)
    assert curve.budget == 39


def test_noise_on_a_plateau_is_seldom_taken_for_a_fall() -> None:
    rng = np.random.default_rng(3)
    level = np.minimum(np.linspace(0.2, 1.4, 60), 0.7)
    falls = 0
    for _ in range(200):
        quality = rng.binomial(500, level) / 500
        falls += peak_of(quality, np.full(60, 500.0)) < 60
    assert falls <= 4


def test_where_samples_are_not_told_the_noise_is_guessed_and_a_fall_still_seen() -> None:
    rng = np.random.default_rng(4)
    level = np.concatenate([np.linspace(0.2, 0.8, 20), np.full(20, 0.3)])
    assert peak_of(level + rng.normal(0, 0.02, 40), np.zeros(40)) < 25


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_better_quality_never_costs_less_and_units_do_not_matter(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 12))
    share = st.floats(0, 1)
    quality = np.array(data.draw(st.lists(share, min_size=n, max_size=n)))
    steps = data.draw(st.lists(st.floats(0, 10), min_size=n, max_size=n))
    evaluated = np.array(data.draw(st.lists(st.integers(1, 999), min_size=n, max_size=n)), float)
    cost = np.cumsum(steps)
    curve: Curve = fit(cost, quality, evaluated)
    at = np.linspace(0, 1, 21)
    found = curve.cost_of(at)
    finite = found[np.isfinite(found)]
    assert (np.diff(finite) >= -1e-9).all()
    assert np.isfinite(found).tolist() == sorted(np.isfinite(found).tolist(), reverse=True)
    assert ((finite >= -1e-9) & (finite <= curve.budget + 1e-9)).all()
    scaled = fit(cost * 1000, quality, evaluated).cost_of(at)
    assert scaled[np.isfinite(scaled)] == pytest.approx(1000 * finite)
