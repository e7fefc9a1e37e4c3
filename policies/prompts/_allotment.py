"""Samples and token caps of prompts by what they bring for what they cost.

- *Samples.*  With a budget of tokens the variance of a mean over prompts is least if prompt i gets
  n_i in proportion to sigma_i / sqrt(c_i) (Neyman 1934), sigma_i^2 = E[p (1 - p)] the variance of
  its rewards and c_i its mean length.  Known before its samples are drawn, it biases none of them.
- *Cap.*  `factor` times the mean length, times the root of the prompt's value per token over the
  average's: a long answer of a prompt that brings little is not waited for.  What is cut has
  failed, which depends on its length: correctness class empirical.

Lengths that are not known count as the average.
"""

import numpy as np

from steersman.estimators.logistic import Logits
from steersman.estimators.observation import Floats, Ints

LEAST, MOST = 0.5, 2.0
"""Samples over the trainer's group size."""
LEAST_DEVIATION = 1e-3
LEAST_CAP = 32
"""Tokens; fewer hold no answer."""


def samples(mean: Floats, variance: Floats, tokens: Floats, group_size: int) -> Ints:
    """(m,) of prompts of these beliefs and mean lengths, `group_size` on average."""
    worth = _deviation(mean, variance) / np.sqrt(_known(tokens))
    size = np.rint(group_size * worth / worth.mean()) if len(worth) else worth
    low, high = max(round(LEAST * group_size), 2), max(round(MOST * group_size), 2)
    return np.asarray(np.clip(size, min(low, group_size), high).astype(np.int64))


def caps(
    mean: Floats, variance: Floats, tokens: Floats, factor: float, max_new_tokens: int
) -> Ints:
    """(m,) of the same prompts; the trainer's, where the length is not known."""
    length = _known(tokens)
    per_token = _deviation(mean, variance) / length
    relative = np.sqrt(per_token / per_token.mean()) if len(per_token) else per_token
    cap = np.where(np.isfinite(tokens), factor * length * relative, max_new_tokens)
    least = min(LEAST_CAP, max_new_tokens)
    return np.asarray(np.clip(np.rint(cap), least, max_new_tokens).astype(np.int64))


def _deviation(mean: Floats, variance: Floats) -> Floats:
    p, uncertain = Logits.gaussian(mean, variance).pass_moments()
    return np.asarray(np.sqrt(np.maximum(p * (1.0 - p) - uncertain, LEAST_DEVIATION**2)))


def _known(tokens: Floats) -> Floats:
    """At least 1, and the average of the others where it is not known."""
    known = tokens[np.isfinite(tokens)]
    average = float(known.mean()) if len(known) else 1.0
    return np.asarray(np.maximum(np.where(np.isfinite(tokens), tokens, average), 1.0))
