"""Two-sample tests, in numpy: do two sets of token sequences come from one distribution?"""

from collections.abc import Sequence
from math import erfc, exp, sqrt

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


def chi_square(a: np.ndarray, b: np.ndarray, least: float = 10.0) -> float:
    """p-value of equal proportions in two histograms; cells below `least` are pooled into one.

    The p-value is the Wilson-Hilferty approximation, good to three digits above 30 cells.
    """
    total = a + b
    big = total >= least
    a = np.append(a[big], a[~big].sum())
    b = np.append(b[big], b[~big].sum())
    total = a + b
    a, b, total = a[total > 0], b[total > 0], total[total > 0]
    share = np.sqrt(b.sum() / a.sum())
    statistic = float((((share * a - b / share) ** 2) / total).sum())
    freedom = len(total) - 1
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / sqrt(spread)
    return 0.5 * erfc(z / sqrt(2))


def bigrams(sequences: Sequence[Sequence[int]], vocabulary: int) -> np.ndarray:
    """Flat histogram of neighbouring tokens over all sequences."""
    counts = np.zeros(vocabulary * vocabulary)
    for sequence in sequences:
        tokens = np.asarray(sequence)
        np.add.at(counts, tokens[:-1] * vocabulary + tokens[1:], 1)
    return counts
