"""When replicas end that draft for some of what they run: the exact collapse, with drafts.

Without drafts a replica that runs its trajectories to the end takes T = M L_1 + c sum L, the
longest first: M for every iteration, c for every iteration of every trajectory.  One that drafts K
tokens for a trajectory writes E(K) of it per iteration (`speculation`), so that it needs L / E
iterations; each of them costs v1 K more, and v0 as long as any is drafted for.  Drafting K for the
m longest and nothing for the others therefore takes

    T(m, K) = M N + c (S - P + P / E) + v0 max(L_1 / E, P / (E B)) + v1 K P / E
    N = max(L_1 / E, L_(m+1), (S - P + P / E) / B)

with S the sum of all, P that of the m longest, and B the slots: what has none waits for one.  It
does not matter when within its life a trajectory is drafted for, as long as others are not held up
by it: an iteration saved costs the same early and late.

All m and a few K of all replicas come out of one sort and one cumulative sum.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from steersman.estimators.observation import Floats, Ints


@dataclass(frozen=True)
class Costs:
    """(r,) seconds of each replica's iterations, and its slots."""

    fixed_s: Floats
    """M."""
    sequence_s: Floats
    """c, its context counted."""
    verify_s: Floats
    """v0."""
    verify_token_s: Floats
    """v1."""
    slots: Floats


@dataclass(frozen=True)
class Batches:
    """n unfinished trajectories, replica by replica, the longest of each first."""

    order: Ints
    """(n,) positions in the arrays they were made from."""
    replica: Ints
    """(n,)"""
    left: Floats
    """(n,) tokens still to be written."""
    first: Ints
    """(r+1,): those of replica i are `first[i]` to `first[i + 1]`."""

    @classmethod
    def of(cls, replica: Ints, left: Floats, replicas: int) -> "Batches":
        """From (n,) replica and tokens, in any order; equals stay in it."""
        order = np.lexsort((-left, replica))
        count = np.bincount(replica, minlength=replicas)
        first = np.concatenate(([0], np.cumsum(count)))
        return cls(order, replica[order], left[order], first)

    @cached_property
    def count(self) -> Ints:
        """(r,) trajectories."""
        return np.diff(self.first)

    @cached_property
    def rank(self) -> Ints:
        """(n,) how many of its replica are before it."""
        return np.arange(len(self.left)) - self.first[self.replica]

    @cached_property
    def upto(self) -> Floats:
        """(n,) tokens left of it and those before it in its replica."""
        running = np.cumsum(self.left)
        return np.asarray(running - (running - self.left)[self.first[self.replica]])

    @cached_property
    def next(self) -> Floats:
        """(n,) tokens left of the one after it in its replica; 0: it is the last."""
        following = np.concatenate((self.left[1:], np.zeros(1)))[: len(self.left)]
        following[self.first[1:][self.count > 0] - 1] = 0.0
        return following

    def total(self, values: ArrayLike) -> Floats:
        """(r,) sums of (n,) values."""
        sums = np.bincount(self.replica, np.asarray(values), len(self.first) - 1)
        return sums.astype(np.float64)

    def largest(self, values: Floats) -> Floats:
        """(r,) maxima of (n,) values, 0 where there is none."""
        out, busy = np.zeros(len(self.first) - 1), self.count > 0
        if len(values):
            out[busy] = np.maximum.reduceat(values, self.first[:-1][busy])
        return out


def ends_s(batches: Batches, costs: Costs, tokens: Floats, drafted: Ints, rows: Ints) -> Floats:
    """(m, q) seconds to the end of its replica if one of `rows` (m,) and all before it there draft.

    (r, q) `tokens` per verification of each of (q,) `drafted`.
    """
    at, upto = batches.replica[rows], batches.upto[rows]
    per_token, slots = 1.0 / tokens[at], costs.slots[at][:, None]
    rest = batches.total(batches.left)[at] - upto
    longest = batches.left[batches.first[at]][:, None] * per_token
    iterations = upto[:, None] * per_token
    all_iterations = rest[:, None] + iterations
    last = np.maximum(np.maximum(longest, batches.next[rows][:, None]), all_iterations / slots)
    checked = np.maximum(longest, iterations / slots)
    each_s = costs.verify_token_s[at][:, None] * drafted
    return np.asarray(
        costs.fixed_s[at][:, None] * last
        + costs.sequence_s[at][:, None] * all_iterations
        + costs.verify_s[at][:, None] * (drafted > 0) * checked
        + each_s * iterations
    )


def end_as_s(batches: Batches, costs: Costs, tokens: Floats, drafted: Ints) -> Floats:
    """(r,) seconds to the end with (n,) tokens per verification of (n,) drafted ones, by row."""
    iterations = batches.left / tokens
    checked = np.where(drafted > 0, iterations, 0.0)
    total = batches.total(iterations)
    last = np.maximum(batches.largest(iterations), total / costs.slots)
    verified = np.maximum(batches.largest(checked), batches.total(checked) / costs.slots)
    return np.asarray(
        costs.fixed_s * last
        + costs.sequence_s * total
        + costs.verify_s * verified
        + costs.verify_token_s * batches.total(drafted * iterations)
    )
