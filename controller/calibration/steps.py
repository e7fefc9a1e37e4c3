"""A run as a list of steps: what was asked together, and what became of it.

From a table of samples (several per prompt) a run is made up: every pass visits each prompt once,
in an order drawn afresh, `prompts_per_step` at a time; a visit takes `group_size` of the prompt's
samples, none a second time before all were used.  A prompt is a (source, prompt_id): the same text
under other weights is another prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Bools, Floats, Ints


@dataclass(frozen=True)
class Step:
    """n trajectories in g groups that start together."""

    prompt_key: Ints
    """(g,)"""
    group_row: Ints
    """(n,) row of each trajectory's group."""
    length: Ints
    """(n,) tokens it would write if nobody cut it off before its cap."""
    truncated: Bools
    """(n,) it is the cap that ends it."""
    max_new_tokens: Ints
    """(n,) the cap."""
    reward: Floats
    """(n,) NaN where there is none."""
    cut_at: Floats
    """(n,) tokens after which it is aborted; inf: never."""
    scored: Bools
    """(n,) `length` is what it would really have written, so that forecasts can be held to it."""
    features: Floats
    """(g, f)"""
    turns: Ints
    """(n,) turns it takes in all."""
    concurrency: int
    """Trajectories that run at once; the others wait for their turn, in order."""

    def rewards_by_group(self) -> tuple[Ints, Floats] | None:
        """(m,) prompts and (m, size) rewards of the groups that are complete and fully rewarded.

        Only groups of the step's most common size; None if there are none.
        """
        sizes = np.bincount(self.group_row, minlength=len(self.prompt_key))
        order = np.argsort(self.group_row, kind="stable")
        size = int(np.bincount(sizes).argmax()) if len(sizes) else 0
        usual = np.flatnonzero(sizes == size)
        rows = order[np.isin(self.group_row[order], usual)]
        rewards = self.reward[rows].reshape(len(usual), size)
        known = np.isfinite(rewards).all(axis=1)
        return (self.prompt_key[usual[known]], rewards[known]) if known.any() else None


@dataclass(frozen=True)
class Samples:
    """m samples of known prompts, in any order."""

    prompt: list[str]
    """(m,) name of the prompt, its source included."""
    length: Ints
    truncated: Bools
    max_new_tokens: Ints
    reward: Floats
    turns: Ints


@dataclass(frozen=True)
class Plan:
    """How a run is made up."""

    group_size: int = 8
    prompts_per_step: int = 32
    passes: int = 3
    concurrency: int | None = None
    """None: as many as a step has prompts, so that a step takes about `group_size` waves."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("group_size", "prompts_per_step", "passes", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} is {value}; valid: 1 or more")
        if self.seed < 0:
            raise InvalidInputError(f"seed is {self.seed}; valid: 0 or more")


def made_up_steps(samples: Samples, plan: Plan) -> list[Step]:
    """Steps as the module's docstring says."""
    group_size, prompts_per_step = plan.group_size, plan.prompts_per_step
    concurrency = plan.concurrency or prompts_per_step
    rng = np.random.default_rng(plan.seed)
    names, prompt = np.unique(np.array(samples.prompt), return_inverse=True)
    keys = np.array([_key(name) for name in names.tolist()])
    rows = np.argsort(prompt, kind="stable")
    of_prompt = np.split(rows, np.cumsum(np.bincount(prompt))[:-1])
    draws = [_draws(own, group_size, rng) for own in of_prompt]
    steps = []
    for _ in range(plan.passes):
        order = rng.permutation(len(names))
        for first in range(0, len(order), prompts_per_step):
            visited = order[first : first + prompts_per_step]
            groups = [next(draws[p]) for p in visited]
            steps.append(_step(samples, keys[visited], groups, concurrency))
    return steps


def _draws(own: Ints, group_size: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Samples of one prompt, `group_size` at a time (all of them where there are fewer)."""
    while True:
        order = rng.permutation(own)
        size = min(group_size, len(own))
        for first in range(0, len(own) - size + 1, size):
            yield order[first : first + size]


def _step(samples: Samples, keys: Ints, groups: list[Ints], concurrency: int) -> Step:
    rows = np.concatenate(groups)
    return Step(
        prompt_key=keys,
        group_row=np.repeat(np.arange(len(groups)), [len(g) for g in groups]),
        length=samples.length[rows],
        truncated=samples.truncated[rows],
        max_new_tokens=samples.max_new_tokens[rows],
        reward=samples.reward[rows],
        cut_at=np.full(len(rows), np.inf),
        scored=np.ones(len(rows), dtype=np.bool_),
        features=np.zeros((len(groups), 0)),
        turns=samples.turns[rows],
        concurrency=concurrency,
    )


def _key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1
