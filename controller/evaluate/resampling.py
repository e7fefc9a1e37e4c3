"""What C(q) could as well have been: other evaluations of the same runs, and other seeds.

Two levels.  Within a run, each evaluation is drawn anew around the fitted curve (binomial, or
normal where `evaluated` is not known), and the curve is fitted again.  Over runs, seeds are drawn
with replacement, one draw for all arms, so that what is paired stays paired.

Percentiles of a mean over n resampled seeds are too narrow by about sqrt((n - 1) / n) z / t, a
third for five seeds: levels are moved outwards by that much (the expanded percentile interval of
Hesterberg, Am. Stat. 2015, section 5).
"""

import math
from collections.abc import Sequence

import numpy as np

from steersman.controller.evaluate.curve import fitted, noise, rising, weights
from steersman.controller.evaluate.paired import LEVEL
from steersman.controller.evaluate.study import Run
from steersman.estimators.observation import Floats

REDRAWS = 100
"""Of each run's evaluations."""
DRAWS = 2_000
"""Of the seeds."""


def redrawn_costs(run: Run, axis: str, targets: Floats, rng: np.random.Generator) -> Floats:
    """(REDRAWS, targets) what the run's C(q) would be with other evaluations; infinite: never."""
    cost, measured, evaluated = run.cost(axis), run.quality, run.evaluated
    level = fitted(measured, evaluated, run.peak)
    known = (evaluated > 0).all()
    if known:
        count = evaluated.astype(np.int64)
        drawn = rng.binomial(count, np.clip(level, 0, 1), (REDRAWS, len(level))) / count
    else:
        drawn = rng.normal(level, noise(measured, evaluated), (REDRAWS, len(level)))
    weight = weights(evaluated)
    return np.stack([rising(cost, one, weight, run.peak).cost_of(targets) for one in drawn])


def resampled_means(logs: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """(DRAWS, targets) means over resampled seeds, from each seed's (REDRAWS, targets)."""
    n = len(logs)
    stacked = np.stack(logs)
    chosen = rng.integers(0, n, (DRAWS, n))
    which = rng.integers(0, REDRAWS, (DRAWS, n))
    found: Floats = stacked[chosen, which].mean(axis=1)
    return found


def expanded(draws: Floats, seeds: int) -> tuple[Floats, Floats]:
    """(targets,) lower and upper percentiles over the first axis, moved outwards for few seeds."""
    from scipy.special import ndtr, stdtrit

    tail = (1 - LEVEL) / 2
    if seeds > 1:
        tail = float(ndtr(math.sqrt(seeds / (seeds - 1)) * stdtrit(seeds - 1, tail)))
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return low, high
