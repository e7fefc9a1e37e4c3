"""Plans for many trajectories at once: one after another, or in contiguous runs.  Compiled.

Each takes rows in an order and answers the replica of each; the load is brought up to date.
"""

import numba
import numpy as np

from steersman.policies.adaptive._ends import Load, add, end_with_s, one_end_s

BISECTIONS = 12
"""Halvings of the interval that holds the common end: to a fourth of a thousandth."""
TRIED = 16
"""Replicas tried for one trajectory: those that end soonest without it."""
HOPELESS_S = 1e9


@numba.njit(cache=True, nogil=True)
def place_all(model, rows, load, order, target):  # type: ignore[no-untyped-def]
    """Bring a load up to date with an assignment; -1: nowhere."""
    for at in range(len(order)):
        if target[at] >= 0:
            add(model, rows, load, order[at], target[at])


@numba.njit(cache=True, nogil=True)
def by_fewest(model, rows, load, order):  # type: ignore[no-untyped-def]
    """Fewest in flight first, ties by name: what the trainer's default does, in expectation."""
    target = np.full(len(order), -1)
    for at in range(len(order)):
        best = -1
        for r in model.by_name:
            if model.open[r] and (best < 0 or load.number[r] < load.number[best]):
                best = r
        add(model, rows, load, order[at], best)
        target[at] = best
    return target


@numba.njit(cache=True, nogil=True)
def by_end(model, rows, load, order, room, memory, final):  # type: ignore[no-untyped-def]
    """Where, with it there, the mean end is soonest (list scheduling, Graham 1969), of the `TRIED`
    that end soonest without it.

    `room` (r,) is counted down by trajectories and `memory` (r,) by their `final` (n,) contexts; a
    replica with any memory left takes one more, whatever its size.  -1 where there was no room.
    """
    target = np.full(len(order), -1)
    mean_s = np.zeros(len(load.number))
    for r in range(len(mean_s)):
        mean_s[r] = _mean_end_s(model, load, r)
    for at in range(len(order)):
        i, best, best_s = order[at], -1, np.inf
        limit_s = _limit_s(model, mean_s, room, memory)
        for r in model.by_name:
            if not model.open[r] or room[r] <= 0 or memory[r] <= 0 or mean_s[r] > limit_s:
                continue
            ends_s = end_with_s(model, rows, load, i, r)
            if ends_s < best_s:
                best, best_s = r, ends_s
        if best < 0:
            break
        add(model, rows, load, i, best)
        mean_s[best] = _mean_end_s(model, load, best)
        room[best] -= 1
        memory[best] -= final[i]
        target[at] = best
    return target


@numba.njit(cache=True, nogil=True)
def _mean_end_s(model, load, r):  # type: ignore[no-untyped-def]
    total_s = 0.0
    for s in range(load.longest.shape[0]):
        total_s += one_end_s(
            model, r, load.longest[s, r], load.total[s, r], load.area[s, r], load.extra_s[r]
        )
    return total_s / load.longest.shape[0]


@numba.njit(cache=True, nogil=True)
def _limit_s(model, mean_s, room, memory):  # type: ignore[no-untyped-def]
    """An end that at least TRIED open replicas with room do not exceed."""
    if len(mean_s) <= TRIED:
        return np.inf
    able = np.empty(len(mean_s))
    count = 0
    for r in range(len(mean_s)):
        if model.open[r] and room[r] > 0 and memory[r] > 0:
            able[count] = mean_s[r]
            count += 1
    if count <= TRIED:
        return np.inf
    return np.partition(able[:count], TRIED - 1)[TRIED - 1]


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _copy(load):  # type: ignore[no-untyped-def]
    return Load(
        load.longest.copy(), load.second.copy(), load.total.copy(), load.area.copy(),
        load.extra_s.copy(), load.number.copy(), load.has.copy(),
    )  # fmt: skip
