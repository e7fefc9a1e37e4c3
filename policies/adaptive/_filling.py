"""Plans for many trajectories at once: one after another, or in contiguous runs.  Compiled.

Each takes rows in an order and answers the replica of each; the load is brought up to date.
"""

import numba
import numpy as np

from steersman.policies.adaptive._ends import Load, add, end_with_s

BISECTIONS = 12
"""Halvings of the interval that holds the common end: to a fourth of a thousandth."""
HOPELESS_S = 1e9


@numba.njit(cache=True)
def by_fewest(model, rows, load, order):  # type: ignore[no-untyped-def]
    """Fewest in flight first, ties by row: what the trainer's default does, in expectation."""
    target = np.full(len(order), -1)
    for at in range(len(order)):
        best = -1
        for r in range(len(load.number)):
            if model.open[r] and (best < 0 or load.number[r] < load.number[best]):
                best = r
        add(model, rows, load, order[at], best)
        target[at] = best
    return target


@numba.njit(cache=True)
def by_end(model, rows, load, order, room, memory, final):  # type: ignore[no-untyped-def]
    """Where, with it there, the mean end is soonest (list scheduling, Graham 1969).

    `room` (r,) is counted down by trajectories and `memory` (r,) by their `final` (n,) contexts; a
    replica with any memory left takes one more, whatever its size.  -1 where there was no room.
    """
    target = np.full(len(order), -1)
    for at in range(len(order)):
        i, best, best_s = order[at], -1, np.inf
        for r in range(len(load.number)):
            if not model.open[r] or room[r] <= 0 or memory[r] <= 0:
                continue
            ends_s = end_with_s(model, rows, load, i, r)
            if ends_s < best_s:
                best, best_s = r, ends_s
        if best < 0:
            break
        add(model, rows, load, i, best)
        room[best] -= 1
        memory[best] -= final[i]
        target[at] = best
    return target


@numba.njit(cache=True)
def by_cuts(model, rows, load, order, replicas, room):  # type: ignore[no-untyped-def]
    """Contiguous runs of the order, one for each of `replicas` in turn, with the least common mean
    end: what is long comes to few, as a replica pays M for its longest only.

    The end is found by bisection: for a given one, each replica takes as many as it can.
    """
    target = np.full(len(order), -1)
    low, high = 0.0, 1.0
    while not _cut(model, rows, _copy(load), order, replicas, room, high, target):
        low, high = high, 2.0 * high
        if high > HOPELESS_S:
            break
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if _cut(model, rows, _copy(load), order, replicas, room, middle, target):
            high = middle
        else:
            low = middle
    _cut(model, rows, load, order, replicas, room, high, target)
    return target


@numba.njit(cache=True)
def _cut(model, rows, load, order, replicas, room, budget_s, target):  # type: ignore[no-untyped-def]
    """Whether all find a place within the budget."""
    at = 0
    for r in replicas:
        left = room[r]
        while at < len(order) and left > 0:
            if end_with_s(model, rows, load, order[at], r) > budget_s:
                break
            add(model, rows, load, order[at], r)
            target[at] = r
            left -= 1
            at += 1
    return at == len(order)


@numba.njit(cache=True)
def _copy(load):  # type: ignore[no-untyped-def]
    return Load(
        load.longest.copy(), load.second.copy(), load.total.copy(), load.area.copy(),
        load.extra_s.copy(), load.number.copy(), load.has.copy(),
    )  # fmt: skip
