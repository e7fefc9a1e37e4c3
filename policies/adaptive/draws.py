"""Scenarios: what the remaining lengths of all unfinished trajectories may be, drawn together.

Each scenario gives every trajectory a standard normal z, part of it common to its group:

    z = sqrt(rho) * z(group, s) + sqrt(1 - rho) * z(trajectory, s),

rho being how alike two siblings' log lengths are, given what is known (`sibling_correlation`).  The
remaining length is exp of the piecewise linear function of z through the logs of the forecast's
quantiles, extrapolated with the outer slopes, at most what the cap leaves.

The normals belong to ids, not to ticks (common random numbers): a trajectory that is unlucky in a
scenario stays so, two plans are compared on the same draws, and so are two ticks.  Scenarios come
in antithetic pairs.
"""

from functools import cache

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Ints, Observation

TABLE = 8191
"""Normals kept per scenario, a prime: ids one step apart do not fall in step with it."""
STRIDE = 2654435761
"""Knuth's multiplier: neighbours' draws have nothing to do with each other."""
Z90 = 1.2815515655446004


@cache
def _normals(scenarios: int) -> Floats:
    half = np.random.default_rng(20261130).standard_normal((scenarios // 2, TABLE))
    return np.concatenate((half, -half))


def scenarios(observation: Observation, forecast: Forecast, rows: Ints, count: int) -> Floats:
    """(count, m) remaining tokens of `rows` (m,); `count` is even."""
    t, normals = observation.trajectories, _normals(count)
    group = t.group_row[rows]
    rho = forecast.length.sibling_correlation[group]
    own = normals[:, (t.trajectory_id[rows] * STRIDE) % TABLE]
    common = normals[:, (observation.groups.group_id[group] * STRIDE + 4099) % TABLE]
    z = np.sqrt(rho) * common + np.sqrt(1.0 - rho) * own
    log = np.log(np.maximum(forecast.length.remaining_tokens[rows], 1.0))
    low, high = (log[:, 1] - log[:, 0]) / Z90, (log[:, 2] - log[:, 1]) / Z90
    drawn = np.exp(log[:, 1] + z * np.where(z < 0, low, high))
    left = np.maximum(t.max_new_tokens[rows] - t.generated_tokens[rows], 1)
    return np.asarray(np.minimum(drawn, left))
