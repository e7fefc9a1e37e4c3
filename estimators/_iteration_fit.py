"""One iteration-time model for every replica out of weighted moments, over two levels.

A replica's evidence is the moments of its samples: gram = sum w x x', cross = sum w x t (x: the
features, t: seconds).  Each sample is divided by about the time expected of it, so that errors are
relative.

Fleet.  Replicas are taken for scaled copies of one shape, beta: a replica of another type, or a
throttled one, has a *speed factor* s and takes s * x'beta.  Beta is fitted to all moments divided
by the factors, each s is then the one that best scales beta to its own moments, and again: begun
with all replicas alike, that settles in `ROUNDS`.

Replica.  Its own moments on top of `PRIOR_ITERATIONS` of the fleet's shape at its speed.  So a
replica that is new, or whose batch never varies, borrows the shape, and one that is not a scaled
copy departs from it.

The fleet's own prior are ratios alone (rows whose target is 0): it holds at any speed, decides only
where the data say nothing, and leaves what was seen at a single batch as it was.  No coefficient is
below 0, so that times never fall with the load, however far they are extrapolated.
"""

import numpy as np

from steersman.estimators._nonnegative import nonnegative_solve
from steersman.estimators.observation import Floats

UNITS = np.array([1.0, 64.0, 65_536.0, 0.08, 2048.0])
"""One unit of each feature (constant, sequences, context tokens, KV usage above the knee, prompt
tokens of an iteration): what costs about as much as the constant part, for conditioning."""
FEATURES = len(UNITS)
MEAN_CONTEXT = 4096.0
"""Tokens of context for which `UNITS` says that 64 sequences cost as much as the constant part."""
CONTEXT_RATIO = 1024.0
"""Tokens of context that cost as much as their sequence without any: the middle of 70 tables of
GPU, model and parallelism composed of measured kernels (134 to 2315)."""
PRIOR_WEIGHT = 2.0
"""Iterations that each of the prior's ratios weighs."""
PRIOR_ITERATIONS = 200.0
"""Iterations of its own at which a replica's fit weighs as much as the fleet's."""
SPEED_ITERATIONS = 1.0
"""Iterations that the guess of an average speed weighs: less than any one sample."""
LEAST_FIXED = 0.01
"""Of a typical iteration: the least constant part, so that no iteration is forecast to be free."""
ROUNDS = 3
"""Alternations between shape and speeds per fit."""


def _ratios(usage_reported: bool) -> Floats:
    """Rows, in units of the constant part: what `UNITS` says of a sequence of mean context; a
    sequence against its context (where no KV usage is reported: no cost of context); no knee; and a
    prompt token costs a sequence's part and its share of a full chunk's constant part."""
    rows = np.zeros((4, FEATURES))
    per_context = UNITS[2] / UNITS[1]
    rows[0, :3] = 1.0, -1.0, -MEAN_CONTEXT / per_context
    if usage_reported:
        rows[1, 1:3] = 1.0, -CONTEXT_RATIO / per_context
    else:
        rows[1, 2] = 1.0
    rows[2, 3] = 1.0
    rows[3] = UNITS[1] / UNITS[4], 1.0, 0.0, 0.0, -UNITS[1] / UNITS[4]
    return rows


RATIOS, RATIOS_WITHOUT_USAGE = _ratios(usage_reported=True), _ratios(usage_reported=False)


def prior_beta(fixed_s: float) -> Floats:
    """(FEATURES,) the prior's shape for this constant part, context not counted."""
    return fixed_s * np.array([1.0, 1.0, 0.0, 0.0, 1.0 + UNITS[4] / UNITS[1]])


def fit(gram: Floats, cross: Floats, weight: Floats, fixed_s: float) -> Floats:
    """(r, f) coefficients, seconds per unit of `UNITS`.

    From (r, f, f) and (r, f) moments worth (r,) iterations; `fixed_s` is the constant part where
    no replica has any evidence.
    """
    total, speed, shape = float(weight.sum()), np.ones(len(weight)), None
    if total <= 0:
        return np.tile(prior_beta(fixed_s), (len(weight), 1))
    for _ in range(ROUNDS):
        pooled = np.einsum("r,rij->ij", speed**2, gram)
        pooled = pooled + _ratio_gram(pooled / total)
        shape = nonnegative_solve(pooled[None], (speed @ cross)[None], shape)[0]
        speed = (SPEED_ITERATIONS + cross @ shape) / (SPEED_ITERATIONS + gram @ shape @ shape)
    share = PRIOR_ITERATIONS / total
    full = gram + share * pooled / speed[:, None, None] ** 2
    beta = nonnegative_solve(full, cross + share * (pooled @ shape) / speed[:, None], shape)
    typical_s = np.sqrt((weight + PRIOR_ITERATIONS) / full[:, 0, 0])
    beta[:, 0] = np.maximum(beta[:, 0], LEAST_FIXED * typical_s)
    return beta


def _ratio_gram(mean: Floats) -> Floats:
    """(f, f) information of the prior's ratios, for data of this mean information per iteration."""
    rows = RATIOS if mean[2, 2] > 0 else RATIOS_WITHOUT_USAGE
    return np.asarray(PRIOR_WEIGHT * mean[0, 0] * rows.T @ rows)
