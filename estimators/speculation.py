"""What drafting pays: tokens per verification against its cost, in closed form.

A draft of K tokens is verified in one iteration, which writes the accepted prefix and one token
more.  If position j is accepted with probability a_j given all before it, that is

    E(K) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_K   tokens.

A verification reads the weights and the contexts once, as a plain iteration does (M seconds), and
computes K+1 tokens for each of b sequences (c seconds each); the drafter takes d seconds per
position.  So the speed relative to plain decoding is

    S(K, b) = E(K) (M + c b) / (M + c (K+1) b + K d).

Engines pay besides for the rejection sampler, v0 seconds as soon as anything is drafted, and a
drafted token may cost other than a sequence: v1 in place of c, c (K+1) b being c b + v1 K b.  Both
are measured (`ThroughputForecast.verify_s`, `verify_token_s`); 0 and c where nothing is said.

From it follow, without any search over batches, while v0 = 0 and v1 = c:

- K = 1 starts to pay where a_1 exceeds (c b + d) / (M + c b);
- K pays below b = ((E(K) - 1) M - K d) / (c (K + 1 - E(K)));
- the best K never grows with the batch: for J < K the ratio S(K, b) / S(J, b) has the derivative's
  sign of d - M, and with d >= M nothing pays at all, since E(K) <= K + 1.

M holds everything that a verification of more tokens does not repeat: `fixed_s` and `token_s` times
the context tokens of a `ThroughputForecast`; c is its `sequence_s`.
"""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.observation import Floats, Ints

SAME = 1e-9
"""Relative speed-up that counts as none: between equal choices rounding must not decide."""
NO_TIME = 1e-12
"""Seconds that stand for 0 in a quotient."""


def to_depth(counts: Ints, depth: int) -> Floats:
    """(r, depth) from (r, k) counts by position: one that is not reported has drafted nothing."""
    kept = counts[:, :depth]
    whole = np.zeros((len(counts), depth))
    whole[:, : kept.shape[1]] = kept
    return whole


def expected_tokens(acceptance: Floats) -> Floats:
    """(r, k+1) tokens per verification of K = 0..k drafted ones, from (r, k) acceptance."""
    survival = np.cumprod(acceptance, axis=1)
    one = np.ones((len(acceptance), 1))
    return np.concatenate((one, 1.0 + np.cumsum(survival, axis=1)), axis=1)


@dataclass(frozen=True)
class Verifying:
    """What verifying drafts costs."""

    verify_s: Floats
    """(r,) v0."""
    verify_token_s: Floats
    """(r,) v1."""


def speed_up(
    acceptance: Floats,
    batch: Floats,
    fixed_s: Floats,
    per_sequence_s: Floats,
    draft_token_s: float,
    verifying: Verifying | None = None,
) -> Floats:
    """(r, k+1) speed of K = 0..k relative to K = 0, from (r, k) acceptance; the others are (r,).

    A batch below 1 counts as 1: it is the next sequence that the answer is for.
    """
    drafted = np.arange(acceptance.shape[1] + 1)
    batch = np.maximum(batch, 1.0)
    compute_s = (per_sequence_s * batch)[:, None]
    fixed = np.asarray(fixed_s)[:, None]
    more_s = compute_s * drafted + draft_token_s * drafted
    if verifying is not None:
        each_s = (verifying.verify_token_s * batch)[:, None] + draft_token_s
        more_s = verifying.verify_s[:, None] * (drafted > 0) + each_s * drafted
    plain_s = np.maximum(fixed + compute_s, NO_TIME)
    relative = plain_s / np.maximum(fixed + compute_s + more_s, NO_TIME)
    return np.asarray(expected_tokens(acceptance) * relative)


def best_draft_tokens(
    acceptance: Floats,
    batch: Floats,
    fixed_s: Floats,
    per_sequence_s: Floats,
    draft_token_s: float,
    max_k: int | Ints,
    verifying: Verifying | None = None,
) -> tuple[Ints, Floats]:
    """(r,) the fastest K up to `max_k` (one or (r,)), 0 where drafting does not pay; its speed."""
    speed = speed_up(acceptance, batch, fixed_s, per_sequence_s, draft_token_s, verifying)
    allowed = np.arange(speed.shape[1]) <= np.reshape(max_k, (-1, 1))
    speed = np.where(allowed, speed, -np.inf)
    good = speed >= speed.max(axis=1, keepdims=True) * (1.0 - SAME)
    best = np.argmax(good, axis=1)
    return best, speed[np.arange(len(speed)), best]


def break_even_acceptance(
    batch: Floats, fixed_s: Floats, per_sequence_s: Floats, draft_token_s: float
) -> Floats:
    """(r,) acceptance of the first position above which K = 1 pays; 1 or more: it never does.

    Where acceptance does not rise with the position, no other K pays below it either.
    """
    compute_s = per_sequence_s * np.maximum(batch, 1.0)
    return np.asarray((compute_s + draft_token_s) / np.maximum(fixed_s + compute_s, NO_TIME))


def break_even_batch(
    acceptance: Floats, fixed_s: Floats, per_sequence_s: Floats, draft_token_s: float
) -> Floats:
    """(r,) batch below which some K >= 1 pays; 0: none does, inf: one does at every batch."""
    drafted = np.arange(1, acceptance.shape[1] + 1)
    gained = expected_tokens(acceptance)[:, 1:] - 1.0
    saved_s = gained * np.asarray(fixed_s)[:, None] - draft_token_s * drafted
    paid_s = np.asarray(per_sequence_s)[:, None] * (drafted - gained)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(saved_s > 0, saved_s / np.maximum(paid_s, 0.0), 0.0)
    return np.asarray(below.max(axis=1, initial=0.0))
