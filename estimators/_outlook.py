"""From hazards to quantiles and means of what remains, for many trajectories of few groups.

The cumulative hazard of each group is tabulated over log amount, H(g, y) on common nodes; a member
of age a exceeds L with probability exp(H(a) - H(L)), which takes two lookups in its group's row.
Between nodes (10 % apart) H is linear in log amount, survival in the amount.

Compiled (`_outlook_compiled`) where numba is installed, three times as fast; else these arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

import numpy as np

from steersman.estimators.forecast import QUANTILES
from steersman.estimators.observation import Floats, Ints

HIGHEST = 600.0
"""Cumulative hazard beyond which nothing is told apart: exp(-600) is still a normal double."""
ROW_APART = 1024.0
"""Between the rows' hazards when all rows are searched at once."""


@dataclass(frozen=True)
class Grid:
    """Figures at or between equidistant points."""

    values: Floats
    lowest: float
    width: float


@dataclass(frozen=True)
class Hazards:
    """Of g groups: share * (by location) + what age alone adds."""

    mean: Floats
    deviation: Floats
    residual: Grid
    """(b + 1,) cumulative hazard over (log amount - mean) / deviation."""
    share: Floats
    """(k,) of the hazard by location, between the nodes."""
    age: Grid
    """(k,) hazard that age alone adds between the nodes, over log amount."""


def outlook(
    hazards: Hazards, group: Ints, log_age: Floats, log_cap: Floats
) -> tuple[Floats, Floats]:
    """Quantiles (n, 3) of the whole amount, and mean (n,) of what remains below the cap.

    `group` (n,) is each trajectory's row in `hazards`; all have exceeded their age.  Quantiles
    beyond the highest cap are cut off a little beyond it.
    """
    if not len(group):
        return np.zeros((0, len(QUANTILES))), np.zeros(0)
    part = _needed(hazards, float(log_age.min()), float(log_cap.max()))
    return _fastest()(part, group, log_age, log_cap)


@cache
def _fastest() -> Callable[[Hazards, Ints, Floats, Floats], tuple[Floats, Floats]]:
    if find_spec("numba") is None:
        return arrays
    from steersman.estimators._outlook_compiled import compiled

    return compiled


def arrays(
    hazards: Hazards, group: Ints, log_age: Floats, log_cap: Floats
) -> tuple[Floats, Floats]:
    """`outlook` by array operations, on exactly the nodes given."""
    table = _Table(hazards)
    return table.quantiles(group, log_age), table.mean_remaining(group, log_age, log_cap)


def _needed(hazards: Hazards, youngest: float, highest: float) -> Hazards:
    """Without the nodes that nobody will pass."""
    age = hazards.age
    first = int(np.clip((youngest - age.lowest) / age.width, 0, len(age.values) - 1))
    last = int(np.clip((highest - age.lowest) / age.width, first, len(age.values) - 1)) + 1
    kept = Grid(age.values[first:last], age.lowest + first * age.width, age.width)
    return replace(hazards, share=hazards.share[first:last], age=kept)


class _Table:
    """Cumulative hazards (g, k + 1) at the nodes of log amount."""

    def __init__(self, h: Hazards) -> None:
        r, nodes = h.residual, len(h.share) + 1
        self.lowest, self.width = h.age.lowest, h.age.width
        log_amount = self.lowest + self.width * np.arange(nodes)
        z = (log_amount[None, :] - h.mean[:, None]) / h.deviation[:, None]
        edges = r.lowest + r.width * np.arange(len(r.values))
        steps = h.share * np.diff(np.interp(z, edges, r.values), axis=1) + h.age.values
        self.hazard = np.zeros((len(h.mean), nodes))
        np.cumsum(steps, axis=1, out=self.hazard[:, 1:])
        np.minimum(self.hazard, HIGHEST, out=self.hazard)
        self.amount = np.exp(log_amount)
        self.survival = np.exp(-self.hazard)
        # summed from the far end, where survival is small, so that nothing small is lost
        area = 0.5 * (self.survival[:, 1:] + self.survival[:, :-1]) * np.diff(self.amount)
        self.beyond = np.zeros_like(self.hazard)
        self.beyond[:, :-1] = np.cumsum(area[:, ::-1], axis=1)[:, ::-1]

    def quantiles(self, group: Ints, log_age: Floats) -> Floats:
        """(n, 3) amounts that members of this age do not exceed with these probabilities."""
        spent = self._hazard_at(group, log_age)
        nodes = self.hazard.shape[1]
        apart = ROW_APART * np.arange(len(self.hazard))
        flat = (self.hazard + apart[:, None]).ravel()
        answers = []
        for level in QUANTILES:
            target = np.minimum(spent - np.log1p(-level), HIGHEST)
            right = np.searchsorted(flat, target + apart[group]) - nodes * group
            right = np.clip(right, 1, nodes - 1)
            low, high = self.hazard[group, right - 1], self.hazard[group, right]
            share = np.clip((target - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
            log_amount = self.lowest + self.width * (right - 1 + share)
            answers.append(np.exp(np.maximum(log_amount, log_age)))
        return np.stack(answers, axis=1)

    def mean_remaining(self, group: Ints, log_age: Floats, log_cap: Floats) -> Floats:
        """(n,) expected amount beyond the age, none writing beyond the cap."""
        from_age, survival = self._beyond(group, log_age)
        from_cap, _ = self._beyond(group, log_cap)
        return np.asarray(np.maximum(from_age - from_cap, 0.0) / survival)

    def _beyond(self, group: Ints, log_amount: Floats) -> tuple[Floats, Floats]:
        """(n,) integral of survival from an amount to the last node, and survival there."""
        node, _ = self._node(log_amount)
        low, high = self.survival[group, node], self.survival[group, node + 1]
        left = np.maximum(self.amount[node + 1] - np.exp(log_amount), 0.0)
        share = np.minimum(left / (self.amount[node + 1] - self.amount[node]), 1.0)
        survival = high + share * (low - high)
        return self.beyond[group, node + 1] + 0.5 * left * (survival + high), survival

    def _hazard_at(self, group: Ints, log_amount: Floats) -> Floats:
        node, share = self._node(log_amount)
        low = self.hazard[group, node]
        return np.asarray(low + share * (self.hazard[group, node + 1] - low))

    def _node(self, log_amount: Floats) -> tuple[Ints, Floats]:
        nodes = self.hazard.shape[1]
        position = np.clip((log_amount - self.lowest) / self.width, 0.0, nodes - 1.0)
        node = np.minimum(position.astype(np.int64), nodes - 2)
        return node, position - node
