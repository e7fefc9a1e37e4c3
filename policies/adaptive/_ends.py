"""When replicas will have ended, in each of S scenarios, and what one trajectory more changes.

    T(s, r) = M max(longest, sum L / slots, sum K / capacity) + c sum L + k sum K + extra

for remaining lengths L of scenario s, K = context * L + growth * L^2 / 2 the tokens of context that
they are written at, and seconds `extra` for prefills to come.  The first part counts iterations:
as many as the longest writes, or more where the slots or the KV cache are full and the rest waits.
The collapse to M * longest + c * sum L is exact for a batch run to its end (TailSieve, arXiv
2608.22788); with the maxima it is the bound that list scheduling comes close to.

Compiled: a plan is some 10,000 trajectories one after another, each tried on 100 replicas.
"""

from typing import NamedTuple

import numba
import numpy as np

from steersman.estimators.observation import Bools, Floats, Ints


class Model(NamedTuple):
    """(r,) each."""

    fixed_s: Floats
    """M"""
    sequence_s: Floats
    """c"""
    token_s: Floats
    """k"""
    prefill_token_s: Floats
    slots: Floats
    capacity: Floats
    """Tokens of KV cache; inf where it is not known."""
    alive: Bools
    open: Bools
    """May get something."""
    by_name: Ints
    """Rows in the order of the replicas' names: ties do not depend on rows."""


class Rows(NamedTuple):
    """n trajectories."""

    length: Floats
    """(S, n) remaining tokens."""
    chain: Floats
    """(S, n) iterations until its last token: `length`, and more where it waits for tools."""
    context: Floats
    """(n,) tokens of context now."""
    prompt: Floats
    """(n,) tokens of prompt, computed once on a replica for all siblings there."""
    group: Ints
    growth: float
    """Tokens by which a context grows with each that is written: more than 1 where tools answer."""


class Load(NamedTuple):
    """What r replicas have; changed as plans are made."""

    longest: Floats
    """(S, r) of the chains."""
    second: Floats
    """(S, r)"""
    total: Floats
    """(S, r) sum of L."""
    area: Floats
    """(S, r) sum of K."""
    extra_s: Floats
    """(r,)"""
    number: Ints
    """(r,) trajectories."""
    has: Bools
    """(g, r) whether the group's prompt is there."""

    def copy(self) -> "Load":
        """Another one."""
        return Load(
            self.longest.copy(), self.second.copy(), self.total.copy(), self.area.copy(),
            self.extra_s.copy(), self.number.copy(), self.has.copy(),
        )  # fmt: skip


def loads(rows: Rows, replica: Ints, replicas: int, groups: int) -> Load:
    """With `replica` (n,) saying where each is; -1: nowhere."""
    return Load(*_loads(rows, replica, replicas, groups))


@numba.njit(cache=True, nogil=True)
def area_of(rows, s, i):  # type: ignore[no-untyped-def]
    """K of one row in one scenario."""
    x = rows.length[s, i]
    return x * (rows.context[i] + 0.5 * rows.growth * x)


@numba.njit(cache=True, nogil=True)
def _loads(rows, replica, replicas, groups):  # type: ignore[no-untyped-def]
    scenarios = rows.length.shape[0]
    longest, second = np.zeros((scenarios, replicas)), np.zeros((scenarios, replicas))
    total, area = np.zeros((scenarios, replicas)), np.zeros((scenarios, replicas))
    count = np.zeros(replicas, dtype=np.int64)
    has = np.zeros((groups, replicas), dtype=np.bool_)
    for i in range(len(replica)):
        r = replica[i]
        if r < 0:
            continue
        count[r] += 1
        has[rows.group[i], r] = True
        for s in range(scenarios):
            x, chain = rows.length[s, i], rows.chain[s, i]
            total[s, r] += x
            area[s, r] += area_of(rows, s, i)
            if chain > longest[s, r]:
                second[s, r] = longest[s, r]
                longest[s, r] = chain
            elif chain > second[s, r]:
                second[s, r] = chain
    return longest, second, total, area, np.zeros(replicas), count, has


@numba.njit(cache=True, nogil=True)
def end_s(model, load):  # type: ignore[no-untyped-def]
    """(S, r) seconds; 0 of the dead."""
    ends = np.zeros_like(load.longest)
    for s in range(ends.shape[0]):
        for r in range(ends.shape[1]):
            if model.alive[r]:
                ends[s, r] = one_end_s(
                    model, r, load.longest[s, r], load.total[s, r], load.area[s, r], load.extra_s[r]
                )
    return ends


@numba.njit(cache=True, nogil=True)
def one_end_s(model, r, longest, total, area, extra_s):  # type: ignore[no-untyped-def]
    """T of one replica."""
    steps = max(longest, total / model.slots[r], area / model.capacity[r])
    work_s = model.sequence_s[r] * total + model.token_s[r] * area
    return model.fixed_s[r] * steps + work_s + extra_s


@numba.njit(cache=True, nogil=True)
def end_with_s(model, rows, load, i, r):  # type: ignore[no-untyped-def]
    """Mean over scenarios of T of replica r, if row i went there."""
    prefill_s = 0.0 if load.has[rows.group[i], r] else model.prefill_token_s[r] * rows.prompt[i]
    extra_s, total_s = load.extra_s[r] + prefill_s, 0.0
    for s in range(rows.length.shape[0]):
        x = rows.length[s, i]
        total_s += one_end_s(
            model,
            r,
            max(load.longest[s, r], rows.chain[s, i]),
            load.total[s, r] + x,
            load.area[s, r] + area_of(rows, s, i),
            extra_s,
        )
    return total_s / rows.length.shape[0]


@numba.njit(cache=True, nogil=True)
def add(model, rows, load, i, r):  # type: ignore[no-untyped-def]
    """Row i goes to replica r; `second` is not kept up to date."""
    if not load.has[rows.group[i], r]:
        load.has[rows.group[i], r] = True
        load.extra_s[r] += model.prefill_token_s[r] * rows.prompt[i]
    load.number[r] += 1
    for s in range(rows.length.shape[0]):
        x = rows.length[s, i]
        load.longest[s, r] = max(load.longest[s, r], rows.chain[s, i])
        load.total[s, r] += x
        load.area[s, r] += area_of(rows, s, i)
