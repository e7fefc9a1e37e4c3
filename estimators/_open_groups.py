"""Groups of which some rewards are known and some are not, and what was believed before them."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from steersman.estimators._lookup import find
from steersman.estimators.observation import Bools, Floats, Ints

CAPACITY = 65_536
"""Groups that are never completed (their trajectories were stopped) must not pile up: beyond this
the lowest ids, which are the oldest, go.  56 bytes each."""


@dataclass
class OpenGroups:
    """Columns by sorted group id."""

    FIELDS: ClassVar[int] = 7
    ids: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    columns: Floats = field(default_factory=lambda: np.zeros((OpenGroups.FIELDS, 0)))
    """(7, n) offset and variance of the prompt before the group's first reward; whether it was
    unknown then (1.0); passes, samples, smallest and largest of the rewards so far."""

    def find(self, ids: Ints) -> Ints:
        """(m,) column of each group, -1 where no reward of it is known."""
        return find(self.ids, ids)

    def begin(self, ids: Ints, offset: Floats, variance: Floats, unknown: Bools) -> None:
        """Sorted ids that are not open yet, with what was believed of their prompts."""
        counts = np.zeros((2, len(ids)))
        bounds = np.stack((np.full(len(ids), np.inf), np.full(len(ids), -np.inf)))
        columns = np.concatenate(((offset, variance, unknown.astype(np.float64)), counts, bounds))
        at = np.searchsorted(self.ids, ids)
        self.ids = np.insert(self.ids, at, ids)[-CAPACITY:]
        self.columns = np.insert(self.columns, at, columns, axis=1)[:, -CAPACITY:]

    def add(self, at: Ints, reward: Floats) -> None:
        """(m,) rewards of the groups in these columns; a group may occur several times."""
        np.add.at(self.columns[3], at, reward)
        np.add.at(self.columns[4], at, 1.0)
        np.minimum.at(self.columns[5], at, reward)
        np.maximum.at(self.columns[6], at, reward)

    def take(self, at: Ints) -> Floats:
        """(7, m) what is in these columns, which are removed."""
        taken = self.columns[:, at]
        self.ids = np.delete(self.ids, at)
        self.columns = np.delete(self.columns, at, axis=1)
        return taken
