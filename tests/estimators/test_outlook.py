"""Quantiles and means from tabulated hazards: right where the truth is known, compiled or not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.estimators._outlook import Grid, Hazards, arrays, outlook
from steersman.estimators.forecast import QUANTILES

NODES = 130


def pareto(tail: float) -> Hazards:
    """One group whose hazard per unit of log amount is `tail` at all ages: S(L) = (a / L)^tail."""
    return Hazards(
        mean=np.zeros(1),
        deviation=np.ones(1),
        residual=Grid(np.zeros(121), -5.0, 0.1),
        share=np.zeros(NODES),
        age=Grid(np.full(NODES, 0.1 * tail), 0.0, 0.1),
    )


def random_case(seed: int) -> tuple[Hazards, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    groups, n = int(rng.integers(1, 6)), int(rng.integers(1, 40))
    hazards = Hazards(
        mean=rng.normal(6.5, 2.0, groups),
        deviation=rng.uniform(0.2, 2.0, groups),
        residual=Grid(np.cumsum(rng.exponential(0.3, 121)), -5.0, 0.1),
        share=rng.uniform(0.0, 1.0, NODES),
        age=Grid(rng.exponential(0.1, NODES), 0.0, 0.1),
    )
    log_age = rng.uniform(0.0, 9.0, n)
    return hazards, rng.integers(0, groups, n), log_age, log_age + rng.uniform(0.0, 3.0, n)


@pytest.mark.parametrize("tail", [0.8, 1.5, 4.0])
def test_a_pareto_tail_is_answered_as_the_books_say(tail: float) -> None:
    age, cap = np.array([50.0, 1000.0]), np.array([10_000.0, 2000.0])
    quantiles, mean = outlook(pareto(tail), np.zeros(2, dtype=int), np.log(age), np.log(cap))
    expected = age[:, None] * (1 - np.array(QUANTILES)) ** (-1 / tail)
    # beyond the highest cap nobody asks for more than "beyond"
    asked = np.minimum(expected, cap.max())
    np.testing.assert_allclose(np.minimum(quantiles, cap.max()), asked, rtol=1e-9)
    below_cap = age * (1 - (age / cap) ** (tail - 1)) / (tail - 1)
    np.testing.assert_allclose(mean, below_cap, rtol=0.02)


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=150)
def test_compiled_and_arrays_agree(seed: int) -> None:
    pytest.importorskip("numba", reason="there is nothing to compare without numba")
    from steersman.estimators._outlook_compiled import compiled

    case = random_case(seed)
    for mine, other in zip(compiled(*case), arrays(*case), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-7, atol=1e-7)


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_nobody_is_forecast_below_his_age_or_on_average_beyond_the_cap(seed: int) -> None:
    hazards, group, log_age, log_cap = random_case(seed)
    quantiles, mean = outlook(hazards, group, log_age, log_cap)
    assert (quantiles >= np.exp(log_age)[:, None] * (1 - 1e-12)).all()
    assert (np.diff(quantiles, axis=1) >= -1e-9).all()
    assert (mean <= (np.exp(log_cap) - np.exp(log_age)) * (1 + 1e-9) + 1e-6).all()
    assert (mean >= 0).all()


def test_more_hazard_means_less_to_come() -> None:
    hazards, group, log_age, log_cap = random_case(7)
    more = replace(hazards, age=replace(hazards.age, values=2 * hazards.age.values + 0.05))
    before, after = (outlook(h, group, log_age, log_cap) for h in (hazards, more))
    assert (after[0] <= before[0]).all()
    assert (after[1] <= before[1]).all()
