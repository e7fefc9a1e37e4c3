"""Synthetic studies whose C(q) is known: a learning curve per run, measured on so many samples.

Quality after a cost c is `START + (top - START) (1 - exp(-c / scale))`, so that C(q) is
`-scale log(1 - (q - START) / (top - START))`: the ratio of two runs' costs is that of their scales.
A run's scale is the arm's times the seed's (shared by all arms) times the run's own.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from steersman.controller.evaluate.quality_log import QualityPoint
from steersman.controller.evaluate.study import Study, study_of

START, TOP = 0.2, 0.8
SCALE = 350_000.0
"""Tokens of the baseline."""


@dataclass
class SyntheticStudy:
    """`study(rng)` draws one."""

    arms: dict[str, float] = field(default_factory=lambda: {"uniform": 1.0, "ours": 0.7})
    """Scale over the baseline's."""
    tops: dict[str, float] = field(default_factory=dict)
    """Quality that an arm ends at, where it is not `TOP`."""
    seeds: int = 5
    seed_sd: float = 0.3
    """Of the log of a seed's factor."""
    run_sd: float = 0.05
    """Of the log of a run's own."""
    evaluations: int = 25
    evaluated: int = 500
    budget: float = 1_000_000.0
    """Tokens of every run."""
    replica_s_per_token: dict[str, float] = field(default_factory=dict)
    """By arm, where it is not 1e-3."""

    def points(self, rng: np.random.Generator) -> list[QualityPoint]:
        """Of all runs."""
        found = []
        for seed in range(self.seeds):
            shared = math.exp(self.seed_sd * rng.normal())
            for arm, factor in self.arms.items():
                scale = SCALE * factor * shared * math.exp(self.run_sd * rng.normal())
                top = self.tops.get(arm, TOP)
                for step, cost in enumerate(np.linspace(0, self.budget, self.evaluations)):
                    level = START + (top - START) * (1 - math.exp(-cost / scale))
                    right = rng.binomial(self.evaluated, level)
                    found.append(
                        QualityPoint(
                            arm=arm,
                            seed=seed,
                            step=step,
                            tokens=int(cost),
                            replica_s=cost * self.replica_s_per_token.get(arm, 1e-3),
                            wall_s=cost * 2e-3,
                            quality=right / self.evaluated,
                            evaluated=self.evaluated,
                        )
                    )
        return found

    def study(self, rng: np.random.Generator) -> Study:
        """As it would be read."""
        return study_of([("synthetic", point) for point in self.points(rng)], {})


def true_cost(quality: float, scale: float = SCALE, top: float = TOP) -> float:
    """C(q) without noise."""
    return -scale * math.log(1 - (quality - START) / (top - START))
