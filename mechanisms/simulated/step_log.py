"""A profile's overhead from a trainer's own log, and the rollout seconds it then predicts.

Logs of steps seldom hold every length.  Of each step this takes the number of sequences, their mean
and longest length, the mean prompt and the replicas; draws the lengths (`lengths_from_summary`);
deals the sequences to the replicas at random, equally many to each; and takes the slowest replica's
batch run.  Predictions are means over `DRAWS` such draws.

A run's seconds are linear in the two overheads as long as the same replica is the slowest:

    T = T(no overhead) + overhead * Lmax + overhead_sequence * sum(L)

so they follow from a few steps by least squares of the relative error, neither below 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats
from steersman.mechanisms.simulated.batch_run import batch_run_s, lengths_from_summary
from steersman.mechanisms.simulated.fit import relative_least_squares
from steersman.mechanisms.simulated.profile import HardwareProfile

DRAWS = 16
"""The mean's own error is then below 1 % of a step of 128 sequences."""


@dataclass(frozen=True)
class StepSummary:
    """What a log says of one synchronous rollout step in which everything starts at once."""

    sequences: int
    group_size: int
    mean_tokens: float
    longest_tokens: int
    mean_prompt_tokens: float
    max_tokens: int
    """The cap: a longest length that reaches it says little about the others."""
    replicas: int = 1

    @property
    def capped(self) -> bool:
        """Whether the longest was cut off."""
        return self.longest_tokens >= self.max_tokens


def typical_spread(steps: Sequence[StepSummary], seed: int = 0) -> float:
    """Median deviation of log lengths over the steps that no cap cut."""
    free = [step for step in steps if not step.capped]
    if not free:
        raise InvalidInputError("every step reaches its cap: their lengths' spread is not known")
    rng = np.random.default_rng(seed)
    drawn = [
        lengths_from_summary(step.mean_tokens, step.longest_tokens, step.sequences, rng)[1]
        for step in free
        for _ in range(DRAWS)
    ]
    return float(np.median(drawn))


def rollout_s(profile: HardwareProfile, step: StepSummary, spread: float, seed: int = 0) -> float:
    """Predicted seconds; `spread` serves where the cap was reached."""
    return float(_mean_run(profile, step, spread, seed)[0])


def fit_overhead(
    profile: HardwareProfile,
    steps: Sequence[StepSummary],
    measured_s: Sequence[float],
    spread: float,
    seed: int = 0,
) -> HardwareProfile:
    """The profile with the overheads that explain these steps' `measured_s` best."""
    bare = replace(profile, overhead_s=0.0, overhead_sequence_s=0.0)
    runs = np.array([_mean_run(bare, step, spread, seed) for step in steps])
    solved, _ = relative_least_squares(runs[:, 1:], np.array(measured_s), runs[:, 0])
    return replace(
        bare,
        overhead_s=float(solved[0]),
        overhead_sequence_s=float(solved[1]),
        overhead_source=f"fitted to {len(steps)} measured rollouts",
    )


def _mean_run(profile: HardwareProfile, step: StepSummary, spread: float, seed: int) -> Floats:
    """(3,) means over draws: seconds, and the slowest replica's iterations and tokens written."""
    if step.sequences % step.replicas:
        raise InvalidInputError(f"{step.sequences} sequences on {step.replicas} replicas: uneven")
    rng = np.random.default_rng(seed)
    total = np.zeros(3)
    for _ in range(DRAWS):
        lengths, _ = lengths_from_summary(
            step.mean_tokens,
            step.longest_tokens,
            step.sequences,
            rng,
            spread if step.capped else None,
        )
        shares = rng.permutation(lengths).reshape(step.replicas, -1)
        prompts = np.full(shares.shape[1], step.mean_prompt_tokens)
        total += max(
            (batch_run_s(profile, prompts, own, step.group_size), own.max(), own.sum())
            for own in shares
        )
    return total / DRAWS
