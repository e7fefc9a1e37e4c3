"""A policy that learns and sometimes unlearns: prompts whose pass rates move together and apart.

The logit of prompt i at step t is base_i + slope_i * skill_t + walk_it, base ~ N(-0.8, 2.2^2),
slope ~ N(1, 0.4^2), and a walk of 0.06 per step.  Skill starts at 0, rises by 2.5 over the run,
walks by 0.03 per step, and at half-time falls by 0.8 at once, which heals in a tenth of the run.
"""

import numpy as np

from steersman.estimators.logistic import degenerate_probability
from steersman.estimators.success import DynamicLogistic

BATCH = 128
FIRST_KEY = 10_000_000_000
"""Keys are this and more: like hashes, they say nothing of a row."""


class SuccessWorld:
    """`answer` samples at the present step; `advance` trains."""

    def __init__(
        self, seed: int, group_size: int = 16, prompts: int = 3000, steps: int = 300
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.group_size, self.steps, self.step = group_size, steps, 0
        self.base = self.rng.normal(-0.8, 2.2, prompts)
        self.slope = self.rng.normal(1.0, 0.4, prompts)
        self.walk = np.zeros(prompts)
        self.keys = FIRST_KEY + self.rng.permutation(10 * prompts)[:prompts]
        step = np.arange(steps)
        since_fall = np.maximum(step - steps // 2, 0) / (steps / 10)
        fall = np.where(step >= steps // 2, np.maximum(1.0 - since_fall, 0.0), 0.0)
        skill = 2.5 * step / steps + self.rng.normal(0.0, 0.03, steps).cumsum() - 0.8 * fall
        self.skill = skill - skill[0]

    def uniform(self) -> np.ndarray:
        """(128,) prompts (rows), any of them."""
        return self.rng.choice(len(self.keys), BATCH, replace=False)

    def greedy(self, estimator: DynamicLogistic) -> np.ndarray:
        """(128,) the prompts that the estimator calls the least likely to be degenerate."""
        mean, variance = estimator.predict(self.keys, self.step)
        sizes = np.full(len(mean), float(self.group_size))
        degenerate = degenerate_probability(mean, variance, sizes)
        # unseen prompts are all alike: any of them, not always the same
        return np.argsort(degenerate + 1e-9 * self.rng.random(len(mean)))[:BATCH]

    def answer(self, rows: np.ndarray) -> np.ndarray:
        """(m, group_size) rewards 0 or 1 of a group of each prompt."""
        logit = self.base + self.slope * self.skill[self.step] + self.walk
        passing = 1.0 / (1.0 + np.exp(-logit[rows]))
        draws = self.rng.random((len(rows), self.group_size))
        return (draws < passing[:, None]).astype(np.float64)

    def advance(self) -> None:
        """One step of training; stays at the last."""
        self.step = min(self.step + 1, self.steps - 1)
        self.walk += self.rng.normal(0.0, 0.06, len(self.walk))


def uniform_run(seed: int, group_size: int = 16) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and rewards of every step, 128 random prompts each."""
    world = SuccessWorld(seed, group_size)
    run = []
    for _ in range(world.steps):
        rows = world.uniform()
        run.append((world.keys[rows], world.answer(rows)))
        world.advance()
    return run
