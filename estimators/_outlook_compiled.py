"""`_outlook.arrays`, compiled: one pass per trajectory instead of one array per operation."""

import math

import numba
import numpy as np

from steersman.estimators._outlook import HIGHEST, Hazards
from steersman.estimators.forecast import QUANTILES
from steersman.estimators.observation import Floats, Ints

_SPENT = np.array([-math.log1p(-level) for level in QUANTILES])


def compiled(
    hazards: Hazards, group: Ints, log_age: Floats, log_cap: Floats
) -> tuple[Floats, Floats]:
    """As `_outlook.arrays`."""
    h = hazards
    hazard, survival, area = _tables(
        h.mean, h.deviation, h.residual.values, h.residual.lowest, h.residual.width,
        h.share, h.age.values, h.age.lowest, h.age.width,
    )  # fmt: skip
    quantiles, mean = _rows(
        hazard, survival, area, h.age.lowest, h.age.width, group, log_age, log_cap, _SPENT
    )
    return np.asarray(quantiles), np.asarray(mean)


@numba.njit(cache=True)
def _tables(mean, deviation, residual, r_lowest, r_width, share, age, lowest, width):  # type: ignore[no-untyped-def]
    groups, steps = len(mean), len(share)
    hazard = np.zeros((groups, steps + 1))
    survival = np.ones((groups, steps + 1))
    area = np.zeros((groups, steps + 1))
    amount = np.exp(lowest + width * np.arange(steps + 1))
    last = len(residual) - 1
    for g in range(groups):
        before = 0.0
        for k in range(steps + 1):
            position = ((lowest + width * k - mean[g]) / deviation[g] - r_lowest) / r_width
            position = min(max(position, 0.0), float(last))
            node = min(int(position), last - 1)
            here = residual[node] + (position - node) * (residual[node + 1] - residual[node])
            if k:
                step = share[k - 1] * (here - before) + age[k - 1]
                hazard[g, k] = min(hazard[g, k - 1] + step, HIGHEST)
                survival[g, k] = math.exp(-hazard[g, k])
                mean_survival = 0.5 * (survival[g, k] + survival[g, k - 1])
                area[g, k] = area[g, k - 1] + mean_survival * (amount[k] - amount[k - 1])
            before = here
    return hazard, survival, area


@numba.njit(cache=True)
def _rows(hazard, survival, area, lowest, width, group, log_age, log_cap, spent):  # type: ignore[no-untyped-def]
    count, nodes = len(group), hazard.shape[1]
    quantiles, mean = np.zeros((count, len(spent))), np.zeros(count)
    for i in range(count):
        g = group[i]
        node, share = _node(log_age[i], lowest, width, nodes)
        at_age = hazard[g, node] + share * (hazard[g, node + 1] - hazard[g, node])
        for q in range(len(spent)):
            target = min(at_age + spent[q], HIGHEST)
            right = min(max(np.searchsorted(hazard[g], target), 1), nodes - 1)
            low, high = hazard[g, right - 1], hazard[g, right]
            inside = min(max((target - low) / max(high - low, 1e-12), 0.0), 1.0)
            log_amount = lowest + width * (right - 1 + inside)
            quantiles[i, q] = math.exp(max(log_amount, log_age[i]))
        begin = _area_at(hazard, survival, area, g, log_age[i], lowest, width)
        end = _area_at(hazard, survival, area, g, log_cap[i], lowest, width)
        mean[i] = max(end - begin, 0.0) / math.exp(-at_age)
    return quantiles, mean


@numba.njit(cache=True)
def _area_at(hazard, survival, area, g, log_amount, lowest, width):  # type: ignore[no-untyped-def]
    node, share = _node(log_amount, lowest, width, hazard.shape[1])
    here = hazard[g, node] + share * (hazard[g, node + 1] - hazard[g, node])
    beyond = math.exp(log_amount) - math.exp(lowest + width * node)
    return area[g, node] + 0.5 * beyond * (math.exp(-here) + survival[g, node])


@numba.njit(cache=True)
def _node(log_amount, lowest, width, nodes):  # type: ignore[no-untyped-def]
    position = min(max((log_amount - lowest) / width, 0.0), nodes - 1.0)
    node = min(int(position), nodes - 2)
    return node, position - node
