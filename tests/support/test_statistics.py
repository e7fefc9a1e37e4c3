"""The two-sample tests accept equal distributions and reject different ones."""

import numpy as np
from support.statistics import bigram_permutation, bigrams, kolmogorov_smirnov


def chains(rng: np.random.Generator, count: int, stay: float) -> list[list[int]]:
    """Sticky Markov chains over 4 tokens: neighbouring bigrams depend strongly on each other."""
    tokens = rng.integers(0, 4, (count, 1))
    for _ in range(19):
        keep = rng.random((count, 1)) < stay
        tokens = np.hstack([tokens, np.where(keep, tokens[:, -1:], rng.integers(0, 4, (count, 1)))])
    return tokens.tolist()


def test_equal_samples_pass_and_p_values_are_spread_evenly() -> None:
    rng = np.random.default_rng(0)
    smirnov = [kolmogorov_smirnov(rng.normal(size=400), rng.normal(size=400)) for _ in range(200)]
    permuted = [
        bigram_permutation(chains(rng, 50, 0.9), chains(rng, 60, 0.9), 4, seed)
        for seed in range(60)
    ]
    for values in (smirnov, permuted):
        assert 0.38 < np.mean(values) < 0.62
        assert np.mean(np.array(values) < 0.05) < 0.13


def test_a_small_shift_is_found() -> None:
    rng = np.random.default_rng(1)
    assert kolmogorov_smirnov(rng.normal(size=2000), rng.normal(0.2, size=2000)) < 1e-4
    assert bigram_permutation(chains(rng, 500, 0.9), chains(rng, 500, 0.7), 4) <= 0.002


def test_bigrams_count_neighbours() -> None:
    assert bigrams([0, 1, 0, 1], 2).tolist() == [0, 2, 1, 0]
