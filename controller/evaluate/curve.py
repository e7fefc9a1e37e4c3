"""How good a run is at which cost, and what it had cost to become so good: C(q) of one run.

Quality is measured now and then, each time as a share of `evaluated` samples that pass, so each
value is off by sqrt(q (1 - q) / evaluated).  The first value that reaches a target is mostly the
first lucky one: reading C(q) off it is biased low, and the more so the more often one measures
(a run evaluated 100 times on 100 prompts seems to need a quarter less than it does).  So a rising
curve is fitted first: least squares under monotonicity, weighted by `evaluated` (isotonic
regression: Barlow, Bartholomew, Bremner and Brunk, "Statistical Inference under Order
Restrictions", 1972; computed by pool-adjacent-violators).  Each pooled block stands at its mean
cost, and between blocks the curve is linear.

A run can truly become worse again.  Pooling a collapse with the peak before it would deny that the
peak was reached, so a fall is looked for: the best curve that rises up to some evaluation and falls
after it.  If that explains the values better by more than chance would, the curve ends at its peak.
"""

import math
from dataclasses import dataclass

import numpy as np

from steersman.estimators.observation import Floats

FALL = 25.0
"""Drop in the sum of squared standardised residuals from which a fall is believed: of 30, 100 and
200 evaluations on a plateau, with nothing but noise, 1 % show 16, 23 and 25 (simulated)."""
LEAST_TO_FALL = 4
"""Evaluations below which no fall is looked for."""


@dataclass(frozen=True)
class Curve:
    """A run's quality over its cost: linear between knots, and never falling."""

    cost: Floats
    """(k,) of the knots."""
    quality: Floats
    """(k,)"""
    budget: float
    """Cost at the run's last evaluation: what is not reached by then is censored there."""

    def cost_of(self, quality: Floats) -> Floats:
        """C(q): the least cost at which the curve is so high; infinite where it never is."""
        at = np.searchsorted(self.quality, quality, side="left")
        right = np.minimum(at, len(self.quality) - 1)
        left = np.maximum(right - 1, 0)
        rise = self.quality[right] - self.quality[left]
        within = np.minimum(quality, self.quality[right]) - self.quality[left]
        share = within / np.where(rise > 0, rise, 1.0)
        between = self.cost[left] + share * (self.cost[right] - self.cost[left])
        found = np.where(at == 0, self.cost[0], between)
        return np.where(at == len(self.quality), math.inf, found)

    def quality_at(self, cost: Floats) -> Floats:
        """Quality at a cost; flat before the first knot and after the last."""
        return np.interp(cost, self.cost, self.quality)


def fit(cost: Floats, quality: Floats, evaluated: Floats) -> Curve:
    """The curve of one run: (n,) evaluations, by rising cost."""
    return rising(cost, quality, weights(evaluated), peak_of(quality, evaluated))


def rising(cost: Floats, quality: Floats, weight: Floats, peak: int) -> Curve:
    """The curve through the first `peak` evaluations."""
    from scipy.optimize import isotonic_regression

    budget, x, w = float(cost[-1]), cost[:peak], weight[:peak]
    found = isotonic_regression(quality[:peak], weights=w)
    first = found.blocks[:-1]
    at = np.add.reduceat(x * w, first) / np.add.reduceat(w, first)
    return Curve(at, found.x[first], budget)


def fitted(quality: Floats, evaluated: Floats, peak: int) -> Floats:
    """(n,) quality that the curve holds for true at each evaluation; after a fall, as measured."""
    from scipy.optimize import isotonic_regression

    level = quality.copy()
    level[:peak] = isotonic_regression(quality[:peak], weights=weights(evaluated)[:peak]).x
    return level


def noise(quality: Floats, evaluated: Floats) -> Floats:
    """(n,) standard error of each evaluation.

    Where `evaluated` is not known, from what neighbours differ by (Rice 1984), which holds the
    rise between them for noise, too: rather too much than too little.
    """
    if (evaluated > 0).all():
        kept = np.clip(quality, 0.5 / evaluated, 1 - 0.5 / evaluated)
        return np.asarray(np.sqrt(kept * (1 - kept) / evaluated))
    jumps = np.diff(quality)
    return np.full(len(quality), math.sqrt(float((jumps**2).mean()) / 2) if len(jumps) else 0.0)


def peak_of(quality: Floats, evaluated: Floats) -> int:
    """Evaluations up to the peak before a fall; all of them where there is none."""
    from scipy.optimize import isotonic_regression

    n = len(quality)
    if n < LEAST_TO_FALL:
        return n
    weight = weights(evaluated)
    level = isotonic_regression(quality, weights=weight).x
    error = noise(level if (evaluated > 0).all() else quality, evaluated)
    precision = 1.0 / np.maximum(error, 1e-9) ** 2

    def loss(of: Floats, by: Floats, increasing: bool) -> float:
        found = isotonic_regression(of, weights=by, increasing=increasing)
        return float((by * (of - found.x) ** 2).sum())

    whole = loss(quality, precision, increasing=True)
    split = [
        loss(quality[:t], precision[:t], increasing=True)
        + loss(quality[t:], precision[t:], increasing=False)
        for t in range(1, n)
    ]
    best = int(np.argmin(split))
    if whole - split[best] <= FALL:
        return n
    peak, top = best + 1, quality[best]
    while peak < n and quality[peak] >= top:  # the peak itself fits on either side of the split
        top, peak = quality[peak], peak + 1
    return peak


def weights(evaluated: Floats) -> Floats:
    """Of the evaluations: equal where it is not known of all."""
    known = (evaluated > 0).all()
    return evaluated.astype(np.float64) if known else np.ones(len(evaluated))
