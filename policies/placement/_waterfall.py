"""One trajectory after the other to the replica that is best then, compiled.

Each choice changes what the next one finds, so it cannot be vectorised over trajectories, and numpy
over the replicas for each is too slow for a burst: about 25 us on 100 replicas, 0.3 s for 10,000.
Arithmetic, its order and ties are those of `Flow` and `Slots`, so that decisions are equal.
"""

import numba
import numpy as np

FIXED_S, SEQUENCE_S, TOKEN_S, KNEE_S, CAPACITY = range(5)
"""Rows of `model`, (5, r): the columns of a `ThroughputForecast`."""


@numba.njit(cache=True, nogil=True)
def by_rise(  # type: ignore[no-untyped-def]
    tokens, share, most, model, knee, opened, rank, slots, queue, count, kv, now
):
    """To the largest rise of throughput: targets, -1 from the first that nobody takes, and rises.

    `tokens` is (n,), in their order.  `count`, `kv` and `now` are changed.
    """
    targets, rises = np.full(len(tokens), -1), np.zeros(len(tokens))
    for i in range(len(tokens)):
        target, largest = -1, 0.0
        for r in range(len(count)):
            if not opened[r] or count[r] >= slots[r] or queue[r] != 0:
                continue
            there = kv[r] + tokens[i]
            if not (model[CAPACITY, r] <= 0 or there <= model[CAPACITY, r] or count[r] == 0):
                continue
            rise = _rate(model, knee, slots, r, count[r] + 1, there) - now[r]
            if rise > largest or (rise == largest and target >= 0 and rank[r] < rank[target]):
                target, largest = r, rise
        if target < 0:
            break
        if largest < share * most and largest < share * _ideal(
            model, knee, slots, opened, tokens[i]
        ):
            break
        count[target] += 1
        kv[target] += tokens[i]
        now[target] = _rate(model, knee, slots, target, count[target], kv[target])
        targets[i], rises[i] = target, largest
    return targets, rises


@numba.njit(cache=True, nogil=True)
def _ideal(model, knee, slots, opened, tokens):  # type: ignore[no-untyped-def]
    """Tokens per second alone on the best replica."""
    best = 0.0
    for r in range(len(opened)):
        if opened[r]:
            best = max(best, _rate(model, knee, slots, r, 1, 1.0 * tokens))
    return best


@numba.njit(cache=True, nogil=True)
def _rate(model, knee, slots, r, count, kv):  # type: ignore[no-untyped-def]
    seconds = model[FIXED_S, r] + model[SEQUENCE_S, r] * count + model[TOKEN_S, r] * kv
    if model[CAPACITY, r] > 0 and model[KNEE_S, r] != 0:
        seconds += model[KNEE_S, r] * max(kv / model[CAPACITY, r] - knee, 0.0)
    return min(count, slots[r]) / max(seconds, 1e-9)


@numba.njit(cache=True, nogil=True)
def by_fewest(  # type: ignore[no-untyped-def]
    tokens, group, home, marks, spread, preferred, alive, rank, limit, capacity, count, reserved
):
    """To the fewest in flight: targets, -1 from the first that fits nowhere.

    While counts differ by at most `spread`, to `home` if it takes it, else (no home: -1) to one of
    those that the group prefers.  `tokens`, `group`, `home` and `marks` are (n,), in their order;
    `preferred` is (g, r), and where a trajectory goes becomes `marks` there.  `preferred`, `count`
    and `reserved` are changed.
    """
    targets = np.full(len(tokens), -1)
    for i in range(len(tokens)):
        target, liked, low, high = -1, -1, -1, -1
        for r in range(len(count)):
            if not alive[r]:
                continue
            low = count[r] if low < 0 else min(low, count[r])
            high = max(high, count[r])
            fits = reserved[r] + tokens[i] <= capacity[r] or count[r] == 0
            if count[r] >= limit[r] or not fits:
                continue
            if _fewer(r, target, count, rank):
                target = r
            likes = r == home[i] if home[i] >= 0 else preferred[group[i], r]
            if likes and _fewer(r, liked, count, rank):
                liked = r
        if liked >= 0 and high - low <= spread:
            target = liked
        if target < 0:
            break
        count[target] += 1
        reserved[target] += tokens[i]
        preferred[group[i], target] = marks[i]
        targets[i] = target
    return targets


@numba.njit(cache=True, nogil=True)
def _fewer(r, other, count, rank):  # type: ignore[no-untyped-def]
    """Whether r comes before the other one, if there is one."""
    if other < 0 or count[r] < count[other]:
        return True
    return count[r] == count[other] and rank[r] < rank[other]
