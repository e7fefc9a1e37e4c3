"""What verifying drafts costs on top of a plain iteration, fitted online.

An iteration with drafts takes

    tau(b, kv, p) + v0 [anything was drafted] + v1 (tokens drafted in it)

seconds: v0 is the rejection sampler and the host's part of it, v1 the arithmetic of one more token.
A sample of several iterations (see `throughput`) has the mean of both brackets, and its residual
over the plain model is what is fitted, by weighted least squares that forgets, v0, v1 >= 0.

Engines do not count iterations with drafts.  If in n iterations the drafter was asked a times, for
m sequences at a time, and found d drafts, it was asked in a / m of them and found each with the
chance h = d / a; the share of iterations with any is (a / (n m)) (1 - (1 - h)^m), taking the finds
as independent.

Over two levels, as the plain model: v0 in units of a replica's M and v1 in units of its c are the
fleet's, and each replica departs from them with its own evidence.  Before any, v0 is 0 (on an
accelerator it is a few percent of M, and a first verification is needed to learn it) and v1 is c: a
drafted token computes what one more sequence would.  Samples of one kind cannot tell v0 from v1;
then what is beyond the prior is v0's, mostly: the arithmetic is known from the batch, the overhead
is not.
"""

import numpy as np

from steersman.estimators._nonnegative import nonnegative_solve
from steersman.estimators.observation import Floats, Ints, Observation

TERMS = 2
"""v0 and v1."""
PRIOR_TOKENS = 8.0
"""Drafted tokens of the imagined iterations that the prior consists of."""
PRIOR_FIXED, PRIOR_PER_TOKEN = 4.0, 1000.0
"""Iterations that v0 = 0 and v1 = c weigh: one probe of sixteen iterations outweighs the first, and
v0 takes what it cannot tell apart.  A few tokens more or less must not tell v1: where engines share
cores, small batches are those of quiet times.  With 16 in place of 1000 v1 came out at seven times
its value there, and deep drafts seemed dear; batches of drafts tell it all the same."""
FLEET_ITERATIONS = 50.0
"""Iterations with drafts of its own at which a replica weighs as much as the fleet."""
MEMORY_ITERATIONS = 2000.0
"""Iterations with drafts after which 63 % is forgotten."""
LEAST_SEQUENCE = 0.002
"""Of M: the least unit for v1, where the plain model finds that sequences cost nothing."""


def asking(observation: Observation) -> Ints:
    """(r,) running sequences for which something shall be drafted."""
    rows = observation.running
    at = observation.trajectories.replica_row[rows[observation.drafted[rows] > 0]]
    return np.bincount(at, minlength=len(observation.replicas)).astype(np.int64)


def share_with_drafts(drafts: Floats, asked: Floats, sequences: Ints) -> Floats:
    """(m,) share of iterations with any draft, from drafts and times asked per iteration, and the
    sequences for which the drafter is asked at a time."""
    asked = np.maximum(asked, drafts)
    at_once = np.maximum(np.maximum(sequences, asked), 1.0)
    found = drafts / np.maximum(asked, 1e-9)
    return np.asarray(asked / at_once * (1.0 - (1.0 - found) ** at_once))


def fit(gram: Floats, cross: Floats, fixed_s: Floats, sequence_s: Floats) -> Floats:
    """(r, TERMS) seconds, from (r, TERMS, TERMS) and (r, TERMS) moments of residuals.

    `fixed_s` and `sequence_s` (r,) are M and c of the plain model.
    """
    if not gram.any():
        return np.stack((np.zeros_like(sequence_s), sequence_s), axis=1)
    unit = np.stack((fixed_s, np.maximum(sequence_s, LEAST_SEQUENCE * fixed_s)), axis=1)
    gram, cross = gram * unit[:, :, None] * unit[:, None, :], cross * unit
    per_token = PRIOR_PER_TOKEN * np.mean((PRIOR_TOKENS * unit[:, 1] / unit[:, 0]) ** 2)
    pooled = gram.sum(axis=0) + np.diag([PRIOR_FIXED, per_token])
    target = cross.sum(axis=0) + np.array([0.0, per_token])
    fleet = nonnegative_solve(pooled[None], target[None])[0]
    share = FLEET_ITERATIONS / pooled[0, 0]
    own = nonnegative_solve(gram + share * pooled, cross + share * (pooled @ fleet))
    return np.asarray(own * unit)
