"""`_outlook.arrays`, compiled: group by group, with a table of one group that stays in the cache.

It begins at the group's youngest member and ends where its oldest is certain to have ended; what
lies outside is not looked at, so it is not computed.
"""

import math

import numba
import numpy as np

from steersman.estimators._outlook import HIGHEST, Hazards
from steersman.estimators.forecast import QUANTILES
from steersman.estimators.observation import Floats, Ints

_SPENT = np.array([-math.log1p(-level) for level in QUANTILES])
_CERTAIN = 50.0
"""Hazard beyond the oldest member after which nobody is left: exp(-50) = 2e-22."""


def compiled(
    hazards: Hazards, group: Ints, log_age: Floats, log_cap: Floats
) -> tuple[Floats, Floats]:
    """As `_outlook.arrays`."""
    h, r = hazards, hazards.residual
    first = (h.age.lowest - h.mean) / (h.deviation * r.width) - r.lowest / r.width
    pace = h.age.width / (h.deviation * r.width)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(h.mean) + 1))
    amount = np.exp(h.age.lowest + h.age.width * np.arange(len(h.share) + 1))
    position = np.clip((log_age - h.age.lowest) / h.age.width, 0.0, len(h.share))
    cap_position = np.clip((log_cap - h.age.lowest) / h.age.width, 0.0, len(h.share))
    log_amounts, mean = _answer(
        first, pace, r.values, h.share, h.age.values, amount, order, bounds,
        position, cap_position, np.exp(log_age), np.exp(log_cap), _SPENT,
    )  # fmt: skip
    log_amounts = h.age.lowest + h.age.width * log_amounts
    return np.exp(np.maximum(log_amounts, log_age[:, None])), np.asarray(mean)


@numba.njit(cache=True, nogil=True)
def _answer(  # type: ignore[no-untyped-def]
    first, pace, residual, share, age, amount, order, bounds, position, cap, at, at_cap, spent
):
    """Positions of the quantiles on the grid (n, 3), and means (n,)."""
    nodes, count = len(share) + 1, len(order)
    quantiles, mean = np.empty((count, len(spent))), np.empty(count)
    hazard, survival, beyond = np.zeros(nodes), np.ones(nodes), np.zeros(nodes)
    for g in range(len(first)):
        rows = order[bounds[g] : bounds[g + 1]]
        if not len(rows):
            continue
        youngest, oldest = nodes - 2, 0
        for i in rows:
            node = min(int(position[i]), nodes - 2)
            youngest, oldest = min(youngest, node), max(oldest, node + 1)
        _fill(
            first[g], pace[g], residual, share, age, amount, youngest, oldest,
            hazard, survival, beyond,
        )  # fmt: skip
        for i in rows:
            node = min(int(position[i]), nodes - 2)
            here = hazard[node] + (position[i] - node) * (hazard[node + 1] - hazard[node])
            right = node + 1
            for q in range(len(spent)):
                target = min(here + spent[q], HIGHEST)
                while right < nodes - 1 and hazard[right] < target:
                    right += 1
                low, high = hazard[right - 1], hazard[right]
                inside = (target - low) / max(high - low, 1e-12)
                quantiles[i, q] = right - 1 + min(max(inside, 0.0), 1.0)
            from_age, left = _beyond(at[i], node, amount, survival, beyond)
            node = min(int(cap[i]), nodes - 2)
            from_cap, _ = _beyond(at_cap[i], node, amount, survival, beyond)
            mean[i] = max(from_age - from_cap, 0.0) / left
    return quantiles, mean


@numba.njit(cache=True, nogil=True)
def _beyond(at, node, amount, survival, beyond):  # type: ignore[no-untyped-def]
    """Integral of survival from an amount to the last node, and survival there."""
    left = max(amount[node + 1] - at, 0.0)
    share = min(left / (amount[node + 1] - amount[node]), 1.0)
    here = survival[node + 1] + share * (survival[node] - survival[node + 1])
    return beyond[node + 1] + 0.5 * left * (here + survival[node + 1]), here


@numba.njit(cache=True, nogil=True)
def _fill(  # type: ignore[no-untyped-def]
    first, pace, residual, share, age, amount, youngest, oldest, hazard, survival, beyond
):
    """Cumulative hazard, survival and its integral to the end, at the nodes from `youngest`."""
    last, end = len(residual) - 1, HIGHEST
    hazard[youngest], survival[youngest], gone = 0.0, 1.0, len(hazard) - 1
    before = _at(residual, first + pace * youngest, last)
    for k in range(youngest + 1, len(hazard)):
        if hazard[k - 1] >= end:
            gone = min(gone, k - 1)
            hazard[k], survival[k], beyond[k] = hazard[k - 1], 0.0, 0.0
            continue
        here = _at(residual, first + pace * k, last)
        step = share[k - 1] * (here - before) + age[k - 1]
        hazard[k], before = min(hazard[k - 1] + step, HIGHEST), here
        if k == oldest:
            end = min(hazard[k] + _CERTAIN, HIGHEST)
        survival[k] = math.exp(-hazard[k])
    beyond[gone] = 0.0
    # from the far end, where survival is small, so that nothing small is lost
    for k in range(gone - 1, youngest - 1, -1):
        mean_survival = 0.5 * (survival[k] + survival[k + 1])
        beyond[k] = beyond[k + 1] + mean_survival * (amount[k + 1] - amount[k])


@numba.njit(cache=True, nogil=True)
def _at(values, position, last):  # type: ignore[no-untyped-def]
    position = min(max(position, 0.0), float(last))
    node = min(int(position), last - 1)
    return values[node] + (position - node) * (values[node + 1] - values[node])
