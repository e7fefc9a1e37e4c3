"""A bounded table of what each prompt's finished trajectories were like."""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.observation import Floats, Ints


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _no_floats() -> Floats:
    return np.zeros(0)


@dataclass
class PromptTable:
    """Count, mean and last step of each prompt, sorted by key; the longest unseen go first."""

    capacity: int
    keys: Ints = field(default_factory=_no_ints)
    count: Floats = field(default_factory=_no_floats)
    mean: Floats = field(default_factory=_no_floats)
    last_step: Ints = field(default_factory=_no_ints)

    def find(self, keys: Ints) -> Ints:
        """(m,) row of each key, -1 where it is unknown."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[rows] == keys, rows, -1)

    def add(self, keys: Ints, values: Floats, step: int, age_variance: float) -> None:
        """Fold (m,) values into their prompts' means.

        A prompt last seen some steps ago counts for less: its mean's variance 1/count (in units of
        the values' own) grew by `age_variance` per step.
        """
        new, inverse = np.unique(keys, return_inverse=True)
        self._insert(new[self.find(new) < 0], step)
        rows = self.find(new)
        age = np.maximum(step - self.last_step[rows], 0)
        old = self.count[rows] / (1.0 + self.count[rows] * age * age_variance)
        total = old + np.bincount(inverse)
        sums = old * self.mean[rows] + np.bincount(inverse, weights=values)
        self.count[rows], self.mean[rows], self.last_step[rows] = total, sums / total, step
        self._evict()

    def _insert(self, keys: Ints, step: int) -> None:
        if not len(keys):
            return
        order = np.argsort(np.concatenate((self.keys, keys)), kind="stable")
        zeros = np.zeros(len(keys))
        self.keys = np.concatenate((self.keys, keys))[order]
        self.count = np.concatenate((self.count, zeros))[order]
        self.mean = np.concatenate((self.mean, zeros))[order]
        self.last_step = np.concatenate((self.last_step, np.full(len(keys), step)))[order]

    def _evict(self) -> None:
        surplus = len(self.keys) - self.capacity
        if surplus <= 0:
            return
        keep = np.sort(np.argsort(self.last_step, kind="stable")[surplus:])
        self.keys, self.count = self.keys[keep], self.count[keep]
        self.mean, self.last_step = self.mean[keep], self.last_step[keep]
