"""Ends of some replicas for all m and K that are tried, and the least of them."""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.draft_ends import Batches, Costs, ends_s
from steersman.estimators.observation import Bools, Floats, Ints

MOST_TOLD = 16
"""Trajectories of one replica that draft while others there do not: the tail of any batch, and few
enough to tell in one tick."""


@dataclass(frozen=True)
class EndsTable:
    """Of (s,) replicas; the others of (r,) are left out."""

    batches: Batches
    replicas: Ints
    """(s,)"""
    rows: Ints
    """(m,) of `batches`: it and all before it in its replica draft."""
    begin: Ints
    """(s,) where those of each replica begin."""
    end_s: Floats
    """(m, q); inf where it cannot be."""
    work: Floats
    """(m, q) tokens drafted to the end."""

    @classmethod
    def of(
        cls,
        batches: Batches,
        costs: Costs,
        tokens: Floats,
        choices: Ints,
        possible: Bools,
        asked: Bools,
        batch: Floats,
    ) -> "EndsTable":
        """From (r, q) tokens per verification of (q,) choices of K, (r, q) which are possible, and
        (r,) which replicas are asked.  With (r,) `batch` sequences at a time, a replica must not
        write fewer tokens per second."""
        b = batches
        replicas = np.flatnonzero(asked & (b.count > 0))
        tried = np.zeros(len(b.left), dtype=np.bool_)
        for i in range(MOST_TOLD):
            tried[b.first[replicas] + np.minimum(i, b.count[replicas] - 1)] = True
        tried[b.first[replicas + 1] - 1] = True
        rows = np.flatnonzero(tried)
        at = b.replica[rows]
        m = np.minimum(b.rank[rows] + 1, batch[at])[:, None]
        plain_s = (costs.fixed_s + costs.sequence_s * batch)[at][:, None]
        each_s = costs.verify_token_s[at][:, None] * choices
        takes_s = plain_s + costs.verify_s[at][:, None] * (choices > 0) + each_s * m
        written = 1.0 + m * (tokens[at] - 1.0) / batch[at][:, None]
        fits = possible[at] & ((written * plain_s >= takes_s) | (choices == 0))
        end_s = np.where(fits, ends_s(b, costs, tokens, choices, rows), np.inf)
        work = choices / tokens[at] * b.upto[rows][:, None]
        return cls(b, replicas, rows, np.searchsorted(at, replicas), end_s, work)

    @property
    def best_s(self) -> Floats:
        """(s,) earliest end of each."""
        return self._least(self.end_s.min(axis=1, initial=np.inf))

    def cheapest(self, limit_s: Floats) -> tuple[Ints, Ints, Floats]:
        """(s,) m, choice and end of least work that each of the replicas ends by (s,) with; one
        that cannot ends as soon as it can."""
        limit_s = np.maximum(limit_s, self.best_s)
        part = np.searchsorted(self.begin, np.arange(len(self.rows)), side="right") - 1
        work = np.where(self.end_s <= limit_s[part, None], self.work, np.inf)
        by_row = work.min(axis=1, initial=np.inf)
        good = np.flatnonzero(by_row <= self._least(by_row)[part])
        row = good[np.searchsorted(good, self.begin)]
        choice = np.argmin(work[row], axis=1)
        return self.batches.rank[self.rows[row]] + 1, choice, self.end_s[row, choice]

    def _least(self, by_row: Floats) -> Floats:
        if not len(self.begin):
            return np.zeros(0)
        return np.asarray(np.minimum.reduceat(by_row, self.begin))
