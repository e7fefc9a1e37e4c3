"""Made-up workloads: lengths with a tail of a given weight, alike or unlike among siblings.

    log L = log(median) + sigma * (sqrt(share) * prompt + sqrt(1 - share) * sample)

for standard normal `prompt` (one per prompt, the same at every visit) and `sample`; sigma follows
from the ratio of the 90th percentile to the median, and `share` is the part of the variance that
the prompt explains.  Measured on reasoning models: 0.65 of the variance lies between prompts, with
P90 / P50 from 1.5 to 6 (arXiv 2608.22788); 0.85 on MATH-500 with long chains of thought, where
siblings are alike, and 0.3 with a small model after training, where they are not.

A run visits the prompts of its pool epoch after epoch, each epoch in a new order.  All draws are
made from (seed, what is drawn), so that two policies see the same trajectories.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steersman.controller.replay.workload import Asked, Workload
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Ints

NORMAL_P90 = 1.2815515655446004
"""The 90th percentile of the standard normal distribution."""


@dataclass(frozen=True)
class Lengths:
    """How long trajectories become, and in what groups they come."""

    steps: int = 6
    groups: int = 64
    """Per step."""
    group_size: int = 8
    median_tokens: float = 1200.0
    p90_over_p50: float = 6.0
    prompt_share: float = 0.65
    """Of the variance of log-lengths, explained by the prompt, in 0..1."""
    max_new_tokens: int = 16384
    prompt_tokens: int = 256
    pool: int = 0
    """Prompts in all, rounded up to whole steps; 0: two steps' worth, so that every prompt comes
    again every other step."""

    def __post_init__(self) -> None:
        for name in ("steps", "groups", "group_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}; valid: 1 or more")
        if self.p90_over_p50 <= 1 or not 0 <= self.prompt_share <= 1:
            raise InvalidInputError("valid: p90_over_p50 above 1, prompt_share from 0 to 1")

    @property
    def sigma(self) -> float:
        """Standard deviation of the log-lengths."""
        return float(np.log(self.p90_over_p50) / NORMAL_P90)


def made_up(lengths: Lengths, seed: int) -> Workload:
    """All steps of a run."""
    pool = -(-(lengths.pool or 2 * lengths.groups) // lengths.groups) * lengths.groups
    level = np.random.default_rng((seed, 0)).standard_normal(pool)
    order = _visits(pool, lengths.steps * lengths.groups, np.random.default_rng((seed, 1)))
    steps = []
    for number in range(lengths.steps):
        prompts = order[number * lengths.groups : (number + 1) * lengths.groups]
        sample = np.random.default_rng((seed, 2, number))
        steps.append(_step(number, prompts, level[prompts], lengths, sample))
    return Workload(steps, (f"log-normal lengths, made up from seed {seed}",))


def joined(parts: Sequence[Workload]) -> Workload:
    """One run after another: a change of regime."""
    steps = [step for part in parts for step in part.steps]
    return Workload(
        [replace(step, step=number) for number, step in enumerate(steps)], parts[0].assumed
    )


def _visits(pool: int, count: int, rng: np.random.Generator) -> Ints:
    """Prompts in the order they are visited: permutations one after another."""
    epochs = -(-count // pool)
    return np.concatenate([rng.permutation(pool) for _ in range(epochs)])[:count]


def _step(
    number: int, prompts: Ints, level: Floats, lengths: Lengths, rng: np.random.Generator
) -> Asked:
    size, n = lengths.group_size, len(prompts) * lengths.group_size
    share = lengths.prompt_share
    normal = np.sqrt(share) * np.repeat(level, size)
    normal += np.sqrt(1 - share) * rng.standard_normal(n)
    tokens = np.round(lengths.median_tokens * np.exp(lengths.sigma * normal))
    length = np.clip(tokens, 1, lengths.max_new_tokens).astype(np.int64)
    return Asked.plain(
        step=number,
        prompt_key=prompts.astype(np.int64),
        group_row=np.repeat(np.arange(len(prompts)), size),
        prompt_tokens=lengths.prompt_tokens,
        length=length,
        max_new_tokens=lengths.max_new_tokens,
    )
