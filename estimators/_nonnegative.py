"""Least squares with coefficients of at least 0, for many small systems at once.

The answer's active set is found by principal pivoting: solve for the free coefficients; the
highest one that is infeasible (negative though free, or pulled up though held at 0) changes sides;
again, until none is.  For positive definite systems this ends wherever it begins (Murty 1974),
almost always after one or two changes; whoever is not done after `PIVOTS` has its negative
coefficients cut off.
"""

import numpy as np

from steersman.estimators.observation import Bools, Floats

PIVOTS = 40
"""More than the 2^5 sets of five coefficients would be pointless."""
TOLERANCE = 1e-9
"""Of a coefficient or gradient relative to the system's largest: rounding is not infeasibility."""


def nonnegative_solve(gram: Floats, cross: Floats, like: Floats | None = None) -> Floats:
    """(m, f) minimisers over x >= 0 of x' gram x / 2 - cross' x; gram (m, f, f) positive definite.

    Scale the features so that the coefficients are of one order of magnitude.  `like` (f,) is the
    answer of a system much like these: its active set is tried first, which decides nothing but how
    soon the answer is found.
    """
    count, features = cross.shape
    first = np.ones(features, dtype=np.bool_) if like is None else like > 0
    answer, free = np.zeros_like(cross), np.tile(first, (count, 1))
    open_rows = np.arange(count)
    for _ in range(PIVOTS):
        a, b, f = gram[open_rows], cross[open_rows], free[open_rows]
        x = _solve_free(a, b, f)
        answer[open_rows] = x
        gradient = b - (a @ x[:, :, None])[:, :, 0]
        low = TOLERANCE * np.abs(x).max(axis=1, keepdims=True, initial=0.0)
        steep = TOLERANCE * np.abs(b).max(axis=1, keepdims=True, initial=0.0)
        wrong = np.where(f, x < -low, gradient > steep)
        bad = wrong.any(axis=1)
        if not bad.any():
            break
        open_rows = open_rows[bad]
        last = features - 1 - np.argmax(wrong[bad][:, ::-1], axis=1)
        free[open_rows, last] ^= True
    return np.asarray(np.maximum(answer, 0.0))


def _solve_free(gram: Floats, cross: Floats, free: Bools) -> Floats:
    """(m, f) solutions where `free`, 0 elsewhere."""
    if free.all():
        return np.asarray(np.linalg.solve(gram, cross[:, :, None])[:, :, 0])
    both = free[:, :, None] & free[:, None, :]
    kept = np.where(both, gram, np.eye(cross.shape[1]))
    return np.asarray(np.linalg.solve(kept, np.where(free, cross, 0.0)[:, :, None])[:, :, 0])
