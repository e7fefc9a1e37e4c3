import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.estimators._nonnegative import nonnegative_solve


def systems(seed: int, count: int = 20, features: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Ill-conditioned ones too, most with several coefficients that want to be negative."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 3 * features, features))
    rows[:, :, 1] = rows[:, :, 0] + rng.uniform(0.01, 1.0) * rows[:, :, 1]
    target = rng.normal(size=(count, 3 * features))
    gram = np.einsum("mki,mkj->mij", rows, rows)
    return gram, np.einsum("mki,mk->mi", rows, target)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_no_feasible_direction_improves_the_answer(seed: int) -> None:
    gram, cross = systems(seed)
    x = nonnegative_solve(gram, cross)
    gradient = cross - np.einsum("mij,mj->mi", gram, x)
    scale = np.abs(cross).max()
    assert (x >= 0).all()
    assert (gradient <= 1e-6 * scale).all(), "a coefficient held at 0 would rather grow"
    assert (np.abs(gradient * x) <= 1e-6 * scale * np.abs(x).max()).all()


def test_where_nothing_is_negative_it_is_the_plain_least_squares() -> None:
    gram, _ = systems(0)
    truth = np.random.default_rng(1).uniform(0.1, 2.0, (len(gram), 5))
    answer = nonnegative_solve(gram, np.einsum("mij,mj->mi", gram, truth))
    assert answer == pytest.approx(truth, rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5))
def test_where_the_search_begins_does_not_change_the_answer(seed: int, like: list[float]) -> None:
    gram, cross = systems(seed)
    begun = nonnegative_solve(gram, cross, np.round(like))
    assert begun == pytest.approx(nonnegative_solve(gram, cross), rel=1e-9, abs=1e-9)
