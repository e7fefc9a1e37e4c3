"""Rows of keys in a sorted array."""

import numpy as np

from steersman.estimators.observation import Bools, Ints


def find(known: Ints, keys: Ints) -> Ints:
    """(m,) row of each key in the ascending `known`, -1 where it is not there."""
    if not len(known):
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[at] == keys, at, -1)


def has(known: Ints, keys: Ints) -> Bools:
    """(m,) whether each key is in the ascending `known`."""
    return find(known, keys) >= 0


def match(known: Ints, keys: Ints) -> tuple[Ints, Ints]:
    """Rows of the ascending `known`, and rows of `keys`, that hold the same."""
    at = find(known, keys)
    rows = np.flatnonzero(at >= 0)
    return at[rows], rows
