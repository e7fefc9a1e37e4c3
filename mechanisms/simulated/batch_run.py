"""Rollout seconds without a simulator: every sequence starts at once and runs to its end.

    T = sum over iterations j = 1 .. Lmax of tau(b_j, kv_j) + prefill
    b_j = #{i: L_i >= j},  kv_j = sum over those of (p_i + j)

Exact for one replica whose sequences all fit (one wave), whatever the shape of tau; of the affine
tau it is T = M * Lmax + c * sum(L) with the context's part.  Several replicas: the slowest one's.

`lengths_from_summary` makes up the lengths where a log has only their mean and maximum.
"""

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Ints
from steersman.mechanisms.simulated.profile import HardwareProfile

WIDEST = 4.0
"""Largest deviation of log lengths considered; reasoning runs have 0.5 to 1.2."""
BISECTIONS = 50


def batch_run_s(
    profile: HardwareProfile, prompt_tokens: Floats, lengths: Ints, group_size: int = 1
) -> float:
    """Seconds of one replica for (n,) sequences of (n,) prompt tokens and lengths >= 1.

    The `group_size` samples of a prompt share its prefill (prefix caching).
    """
    longest = int(lengths.max())
    # starts[j] = sequences of length >= j + 1, and the prompt tokens they hold.
    running = _at_least(lengths, np.ones(len(lengths)), longest)
    prompts = _at_least(lengths, prompt_tokens, longest)
    kv = prompts + running * np.arange(1, longest + 1)
    if len(lengths) > profile.max_num_seqs:
        raise InvalidInputError(
            f"{len(lengths)} sequences at once; {profile.name} runs {profile.max_num_seqs}"
        )
    if 0 < profile.kv_capacity_tokens < kv.max():
        raise InvalidInputError(
            f"{kv.max():.0f} tokens of context at once; {profile.name} holds "
            f"{profile.kv_capacity_tokens}: that takes the simulator"
        )
    prefill = profile.prefill_s(float(prompt_tokens.sum()) / group_size)
    return float(profile.iteration_s(running, kv).sum()) + prefill


def lengths_from_summary(
    mean: float, longest: float, count: int, rng: np.random.Generator, spread: float | None = None
) -> tuple[Ints, float]:
    """(count,) lengths of this mean and maximum, and the deviation of their logarithms.

    A log-normal sample, cut at `longest`.  Its location makes the mean; its deviation puts the
    largest draw at `longest` or, where the maximum is a cap and so says little, is given as
    `spread`; then the largest is set to the cap.
    """
    if not 1 <= mean <= longest:
        raise InvalidInputError(f"mean length {mean:g} with a longest of {longest:g}")
    z = np.sort(rng.standard_normal(count))

    def drawn(location: float, deviation: float) -> Floats:
        lengths = np.exp(np.minimum(location + deviation * z, np.log(longest)))
        lengths[-1] = longest
        return np.asarray(lengths)

    low, high = (0.0, WIDEST) if spread is None else (0.0, float(np.log(longest)) + WIDEST)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if spread is None:
            lengths = drawn(np.log(longest) - middle * z[-1], middle)
            too_long = lengths.mean() > mean
            low, high = (middle, high) if too_long else (low, middle)
        else:
            lengths = drawn(middle, spread)
            low, high = (low, middle) if lengths.mean() > mean else (middle, high)
    deviation = middle if spread is None else spread
    return np.maximum(np.rint(lengths), 1).astype(np.int64), deviation


def _at_least(lengths: Ints, weights: Floats, longest: int) -> Floats:
    """(longest,) sum of the weights of those of length >= j, for j = 1 .. longest."""
    ending = np.bincount(lengths, weights=weights, minlength=longest + 1)[1:]
    return np.asarray(ending[::-1].cumsum()[::-1])
