"""The two-sample tests accept equal distributions and reject different ones."""

import numpy as np
from support.statistics import bigrams, chi_square, kolmogorov_smirnov


def test_equal_samples_pass_and_p_values_are_spread_evenly() -> None:
    rng = np.random.default_rng(0)
    smirnov = [kolmogorov_smirnov(rng.normal(size=400), rng.normal(size=400)) for _ in range(200)]
    pearson = [
        chi_square(rng.multinomial(4000, np.full(60, 1 / 60)), rng.multinomial(3000, [1 / 60] * 60))
        for _ in range(200)
    ]
    for values in (smirnov, pearson):
        assert 0.4 < np.mean(values) < 0.6
        assert np.mean(np.array(values) < 0.05) < 0.11


def test_a_small_shift_is_found() -> None:
    rng = np.random.default_rng(1)
    assert kolmogorov_smirnov(rng.normal(size=2000), rng.normal(0.2, size=2000)) < 1e-4
    skewed = np.full(60, 1 / 60)
    skewed[0] *= 2
    skewed /= skewed.sum()
    a, b = rng.multinomial(20000, skewed), rng.multinomial(20000, [1 / 60] * 60)
    assert chi_square(a, b) < 1e-4


def test_bigrams_count_neighbours() -> None:
    assert bigrams([[0, 1, 0, 1]], 2).tolist() == [0, 2, 1, 0]
