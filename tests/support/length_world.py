"""Drifting, heavy-tailed lengths that siblings share, with heavy censoring; and an oracle.

log length = prompt + its random walk + common level + visit + noise.  The common level ramps,
walks, and jumps by `JUMP` at half-time.  Noise "mix": normal, and with a probability of the
prompt's own a second, long mode; "t": Student's t with 4 degrees of freedom, scaled by the prompt.
A few trajectories are aborted at random; "heavy" censoring also aborts, in every other step, all
that are still running when 85 % have ended: the long ones, so that whoever drops them learns short.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from steersman.controller.calibration.steps import Step
from steersman.estimators.forecast import QUANTILES

PROMPTS, GROUPS, GROUP_SIZE, CAP = 2000, 128, 16, 16_384
LEVEL, PROMPT_DEVIATION, VISIT_DEVIATION, WALK = 7.2, 0.7, 0.15, 0.045
RAMP, LEVEL_WALK, JUMP = 0.3, 0.03, 0.45
CORE_DEVIATION, LONG_MODE = 0.45, 1.3
ABORTED = 0.05
FEATURES, FEATURE_WEIGHT = 12, 0.2
"""Three of the features tell a little of the prompt's own mean."""


@dataclass
class World:
    """All steps of one run, and what the generator knew about each trajectory."""

    steps: list[Step]
    survival: list[Callable[[np.ndarray], np.ndarray]]
    """Per step: (n, k) log lengths to (n, k) probabilities of exceeding them."""
    jump_at: int


def make_world(
    noise: str, heavy: bool, steps: int, seed: int, jump: float = JUMP, groups: int = GROUPS
) -> World:
    """A run of so many steps."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(PROMPTS, FEATURES))
    told = features[:, :3].sum(axis=1) * FEATURE_WEIGHT
    own = np.sqrt(PROMPT_DEVIATION**2 - 3 * FEATURE_WEIGHT**2)
    prompt = LEVEL + told + rng.normal(0, own, PROMPTS)
    long_share = rng.beta(1, 6, PROMPTS)
    scale = np.exp(rng.uniform(np.log(0.25), np.log(0.91), PROMPTS))
    level, world = 0.0, World([], [], steps // 2)
    for number in range(steps):
        prompt += rng.normal(0, WALK, PROMPTS)
        level += RAMP / steps + rng.normal(0, LEVEL_WALK) + jump * (number == world.jump_at)
        asked = rng.choice(PROMPTS, groups, replace=False)
        group = np.repeat(np.arange(groups), GROUP_SIZE)
        p, n = asked[group], groups * GROUP_SIZE
        centre = (prompt[asked] + level + rng.normal(0, VISIT_DEVIATION, groups))[group]
        if noise == "mix":
            long = rng.random(n) < long_share[p]
            y = centre + LONG_MODE * long + rng.normal(0, CORE_DEVIATION, n)
            curve = _mixture(centre, long_share[p])
        else:
            y = centre + scale[p] * rng.standard_t(4, n)
            curve = _student(centre, scale[p])
        length = np.clip(np.exp(y), 1, CAP).astype(np.int64)
        cut = np.full(n, np.inf)
        aborted = rng.random(n) < ABORTED
        cut[aborted] = (length * rng.random(n))[aborted]
        if heavy and number % 2:
            cut = np.minimum(cut, np.quantile(length, 0.85))
        world.steps.append(
            Step(
                prompt_key=asked + 1_000_000,
                group_row=group,
                length=length,
                truncated=length >= CAP,
                max_new_tokens=np.full(n, CAP),
                reward=np.full(n, np.nan),
                cut_at=np.where(cut < length, np.floor(cut), np.inf),
                features=features[asked],
                turns=np.ones(n, dtype=np.int64),
                scored=np.ones(n, dtype=np.bool_),
                concurrency=n,
            )
        )
        world.survival.append(curve)
    return world


def _mixture(centre: np.ndarray, long_share: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def survival(y: np.ndarray) -> np.ndarray:
        z = y - centre[:, None]
        short = norm.sf(z / CORE_DEVIATION)
        long = norm.sf((z - LONG_MODE) / CORE_DEVIATION)
        return short + long_share[:, None] * (long - short)

    return survival


def _student(centre: np.ndarray, scale: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda y: student.sf((y - centre[:, None]) / scale[:, None], 4)


def oracle_quantiles(survival: Callable[[np.ndarray], np.ndarray], age: np.ndarray) -> np.ndarray:
    """(n, 3) remaining tokens of trajectories of these ages, by bisection of the true curve."""
    y = np.log(np.maximum(age, 1))[:, None]
    target = survival(y) * (1 - np.array(QUANTILES))
    low, high = np.repeat(y, 3, axis=1), np.full((len(age), 3), 16.0)
    for _ in range(40):
        middle = (low + high) / 2
        beyond = survival(middle) > target
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return np.maximum(np.minimum(np.exp(low), CAP) - age[:, None], 0)
