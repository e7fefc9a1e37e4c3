"""Two-sample tests, in numpy: do two sets of token sequences come from one distribution?"""

from collections.abc import Sequence
from math import exp, sqrt

import numpy as np


def kolmogorov_smirnov(a: Sequence[float], b: Sequence[float]) -> float:
    """p-value of equal continuous distributions (Smirnov's asymptotic two-sample test)."""
    x, y = np.sort(np.asarray(a)), np.sort(np.asarray(b))
    both = np.concatenate([x, y])
    distance = np.abs(
        np.searchsorted(x, both, side="right") / len(x)
        - np.searchsorted(y, both, side="right") / len(y)
    ).max()
    effective = len(x) * len(y) / (len(x) + len(y))
    scaled = (sqrt(effective) + 0.12 + 0.11 / sqrt(effective)) * distance
    terms = [2 * (-1) ** (k - 1) * exp(-2 * (k * scaled) ** 2) for k in range(1, 101)]
    return float(min(max(sum(terms), 0.0), 1.0))


def bigram_permutation(
    a: Sequence[Sequence[int]], b: Sequence[Sequence[int]], vocabulary: int, seed: int = 0
) -> float:
    """p-value, at least 1 / `PERMUTATIONS`, of equal frequencies of neighbouring tokens.

    The statistic is the two-sample chi-square over all bigrams.  Bigrams of one sequence depend on
    each other, so its tabulated distribution does not hold; but whole sequences are exchangeable
    under the null, so it is compared with what it is when sequences change sides at random.
    """
    counts = np.stack([bigrams(sequence, vocabulary) for sequence in [*a, *b]])
    total = counts.sum(0)
    counts, total = counts[:, total >= LEAST], total[total >= LEAST]
    sides = np.zeros((PERMUTATIONS, len(counts)), dtype=np.float32)
    sides[0, : len(a)] = 1  # the first is the real division
    rng = np.random.default_rng(seed)
    for side in sides[1:]:
        side[rng.permutation(len(counts))[: len(a)]] = 1
    on_a = sides @ counts
    expected = total * len(a) / len(counts)
    statistics = ((on_a - expected) ** 2 / expected).sum(1)
    return float((statistics >= statistics[0]).mean())


PERMUTATIONS = 1000
LEAST = 10.0
"""Rarer bigrams are left out: they carry noise only."""


def bigrams(sequence: Sequence[int], vocabulary: int) -> np.ndarray:
    """Flat histogram of the neighbouring tokens of one sequence."""
    tokens = np.asarray(sequence)
    pairs = tokens[:-1] * vocabulary + tokens[1:]
    return np.bincount(pairs, minlength=vocabulary * vocabulary).astype(np.float32)
