"""What a simulated controller learns from siblings, without an estimator in every world.

Scenarios are drawn from normals z, a part of them common to a group (`policies.adaptive.draws`):

    z = sqrt(rho) * G + sqrt(1 - rho) * own,    log remaining = piecewise linear in z.

So what a world's controller could know of G, which decides who of those that wait is to go first,
has a closed form.  One that has ended shows its z; one that has written so much only that z is
above a: normal beyond a it has mean m(a) (Mills' ratio) and variance 1 - d, d = m (m - a), as if z
had been seen to be m / d with the variance (1 - d) / d on top.  With precisions of G added up,

    1 / var(G) = 1 + sum(rho / noise),  mean(G) = var(G) * sum(sqrt(rho) / noise * seen),

noise being 1 - rho and what is on top.  The z of one that waits then has the mean
sqrt(rho) mean(G) and the variance rho var(G) + 1 - rho.  One that goes on is expected to write

    E[L | L > a] = E[L] Q(k - s) / Q(k),  k = (log a - log median) / s

for a log-normal of deviation s, Q being the normal's upper tail: its promise of memory grows.
"""

from dataclasses import dataclass

import numpy as np

from steersman.controller.horizon._compiled import expect, learn
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Bools, Floats, Ints, Observation
from steersman.policies.adaptive.draws import Z90
from steersman.policies.adaptive.plans import Order

MOST_LIKENESS = 0.999
"""Correlation of siblings: one alone never tells everything of the others."""


@dataclass(frozen=True)
class Prior:
    """Of n trajectories, as the scenarios are drawn."""

    log_median: Floats
    low: Floats
    """Change of log remaining per unit of z below the median."""
    high: Floats
    likeness: Floats
    """rho of its group."""
    group: Ints
    groups: int
    expected: Floats
    """Tokens still to be written."""
    most: Floats
    """What the cap leaves."""

    @classmethod
    def of(cls, observation: Observation, forecast: Forecast, rows: Ints) -> "Prior":
        """Of `rows` (n,)."""
        t, length = observation.trajectories, forecast.length
        log = np.log(np.maximum(length.remaining_tokens[rows], 1.0))
        group = t.group_row[rows]
        return cls(
            log_median=log[:, 1],
            low=(log[:, 1] - log[:, 0]) / Z90,
            high=(log[:, 2] - log[:, 1]) / Z90,
            likeness=np.minimum(length.sibling_correlation[group], MOST_LIKENESS),
            group=group,
            groups=len(observation.groups),
            expected=length.mean_remaining_tokens[rows],
            most=np.maximum(t.max_new_tokens[rows] - t.generated_tokens[rows], 1.0),
        )


class Posterior:
    """In w worlds, in which the n have `written` (w, n) tokens since the observation."""

    def __init__(self, prior: Prior, written: Floats, begun: Bools, ended: Bools) -> None:
        self._prior, self._seen = prior, (written, begun, ended)
        shape = len(written), prior.groups
        self._mean, self._precision = np.empty(shape), np.empty(shape)
        learn(
            prior.log_median,
            prior.low,
            prior.high,
            prior.likeness,
            prior.group,
            *self._seen,
            self._mean,
            self._precision,
        )

    def news(self, order: Order, waiting: Ints, worlds: slice = slice(None)) -> Floats:
        """(w, q) change of the scores of `waiting` (q,) since the observation."""
        prior = self._prior
        group, rho = prior.group[waiting], prior.likeness[waiting]
        middle = np.sqrt(rho) * self._mean[worlds, group]
        variance = rho / self._precision[worlds, group] + 1.0 - rho
        if order is Order.LONGEST:
            slope = prior.high[waiting]  # which the mean depends on most
            return np.asarray(slope * middle + slope**2 * (variance - 1.0) / 2)
        upper = middle + Z90 * np.sqrt(variance)
        slope = np.where(upper < 0, prior.low[waiting], prior.high[waiting])
        return np.asarray(slope * upper - prior.high[waiting] * Z90)

    def expected(self) -> Floats:
        """(w, n) tokens that each writes from the observation on."""
        prior, out = self._prior, np.empty_like(self._seen[0])
        expect(
            prior.log_median,
            prior.high,
            prior.likeness,
            prior.group,
            prior.expected,
            prior.most,
            *self._seen,
            self._mean,
            self._precision,
            out,
        )
        return out
