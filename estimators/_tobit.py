"""Location of each group's log amounts, from members that finished and members known to exceed.

A normal prior times the Tobit likelihood (Tobin 1958): finished members y with density, censored
ones (alive, cut off) with P(Y > a).  Newton's method on the log posterior; it is concave, so the
clipped steps converge from anywhere.  A few suffice when it starts where it ended a moment ago.
"""

from dataclasses import dataclass

import numpy as np

from steersman.estimators._hazard import normal_hazard
from steersman.estimators.observation import Bools, Floats, Ints

STEPS_COLD, STEPS_WARM = 6, 2
"""Newton steps that leave an error below 1e-4 from the prior, and from the last tick's location."""
LONGEST_STEP = 1.5


@dataclass(frozen=True)
class Members:
    """m trajectories of the groups 0 .. g - 1."""

    group: Ints
    log_amount: Floats
    censored: Bools
    """Known only to exceed its amount."""

    def of(self, rows: Ints | Bools) -> "Members":
        """A part of them."""
        return Members(self.group[rows], self.log_amount[rows], self.censored[rows])


def posterior(
    mean: Floats,
    variance: Floats,
    within: Floats,
    members: Members,
    start: Floats | None = None,
) -> tuple[Floats, Floats]:
    """(g,) posterior mean and variance of each group's location.

    `mean` and `variance` (g,) are the prior's, `within` (g,) the members' own variance.
    """
    count = len(mean)
    finished, censored = members.of(~members.censored), members.of(members.censored)
    number = np.bincount(finished.group, minlength=count)
    total = np.bincount(finished.group, weights=finished.log_amount, minlength=count)
    precision = 1 / variance + number / within
    # steps are relative to the sums below, so that each costs one pass over the censored alone
    location = (mean / variance + total / within) / precision if start is None else start.copy()
    group, deviation = censored.group, np.sqrt(within)[censored.group]
    variances = deviation**2
    for _ in range(STEPS_COLD if start is None else STEPS_WARM):
        z = (censored.log_amount - location[group]) / deviation
        hazard = normal_hazard(z)
        pull = np.bincount(group, weights=hazard / deviation, minlength=count)
        bend = hazard * (hazard - z) / variances
        information = precision + np.bincount(group, weights=bend, minlength=count)
        slope = (mean - location) / variance + (total - number * location) / within + pull
        location = location + np.clip(slope / information, -LONGEST_STEP, LONGEST_STEP)
    if not len(group):
        information = precision
    return location, 1 / information


def squared_residuals(
    location: Floats, variance: Floats, within: Floats, members: Members
) -> Floats:
    """(m,) expected squared deviation of each member from its group's location.

    A censored one's is that of a normal variable beyond its amount.
    """
    g = members.group
    off = members.log_amount - location[g]
    z = off / np.sqrt(within[g])
    beyond = within[g] * (1 + z * normal_hazard(z))
    return np.asarray(np.where(members.censored, beyond, off**2) + variance[g])
