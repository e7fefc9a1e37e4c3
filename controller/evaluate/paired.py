"""Two arms compared seed by seed: log-ratios, Student's interval over seeds, and power.

A seed fixes the pool, the prompts' order and the first weights, and moves both arms up and down
together; the log of the ratio of their costs has only what is left.  Its mean over n seeds has
Student's interval with n - 1 degrees of freedom, which holds with five seeds where a percentile
bootstrap does not.

A run that never reaches the target is *censored* at its budget: it is not known what it would have
cost, only that it is more.  Leaving such runs out would compare the lucky ones.  Each pair is
compared within the budget that both runs had, L: costs beyond it count as L (the restricted mean of
survival analysis; Royston and Parmar, Stat. Med. 2011).  A pair in which nobody got there says 1.
So where only the baseline is censored the ratio is an upper bound ("<="), where only the arm is a
lower one (">="), and where both are, a ratio within the budget ("~").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steersman.estimators.observation import Floats

LEVEL = 0.95
POWER = 0.80
MAX_SEEDS = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, with Student's interval.  NaN: one seed has none."""

    mean: float
    low: float
    high: float
    sd: float
    """Of single seeds."""
    seeds: int

    @property
    def half(self) -> float:
        """Half the width."""
        return self.high - self.mean

    def exp(self) -> tuple[float, float, float]:
        """Mean and interval of logs as ratios."""
        return math.exp(self.mean), math.exp(self.low), math.exp(self.high)


def student(values: Sequence[float] | Floats) -> Interval:
    """Mean and interval of independent values."""
    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean())
    if len(x) < 2:
        return Interval(mean, math.nan, math.nan, math.nan, len(x))
    from scipy.special import stdtrit

    sd = float(x.std(ddof=1))
    half = float(stdtrit(len(x) - 1, 0.5 + LEVEL / 2)) * sd / math.sqrt(len(x))
    return Interval(mean, mean - half, mean + half, sd, len(x))


@dataclass(frozen=True)
class Ratio:
    """An arm's cost over the baseline's, at equal quality."""

    log: Interval
    reached: int
    """Pairs in which the arm got there within the common budget ..."""
    base_reached: int
    """... and those in which the baseline did."""
    bound: str
    """"=", "<=", ">=" or "~": see the module."""

    @property
    def seeds(self) -> int:
        """Pairs."""
        return self.log.seeds


def ratio(own: Floats, base: Floats, own_budget: Floats, base_budget: Floats) -> Ratio:
    """Of (seeds,) costs, infinite where the target was not reached, by seed in the same order."""
    limit = np.minimum(own_budget, base_budget)
    reached, base_reached = own <= limit, base <= limit
    logs = np.log(np.minimum(own, limit)) - np.log(np.minimum(base, limit))
    both = (bool(reached.all()), bool(base_reached.all()))
    bound = {(True, True): "=", (True, False): "<=", (False, True): ">="}.get(both, "~")
    return Ratio(student(logs), int(reached.sum()), int(base_reached.sum()), bound)


def detectable(sd: float, seeds: int) -> float:
    """The least difference that a two-sided test at `LEVEL` finds with `POWER`."""
    if seeds < 2 or not math.isfinite(sd):
        return math.nan
    low, high = 0.0, 1.0
    while power(high, seeds) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, seeds) < POWER else (low, middle)
    return high * sd


def seeds_needed(effect: float, sd: float) -> int:
    """Seeds that find a difference of `effect` with `POWER`; at most `MAX_SEEDS`."""
    if sd == 0:
        return 2
    low, high = 1, MAX_SEEDS  # `low` is too few
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(abs(effect) / sd, middle) >= POWER else (middle, high)
    return high


def power(effect: float, seeds: int) -> float:
    """Probability that a two-sided test at `LEVEL` sees an effect of so many standard deviations
    (the noncentral t; the other tail's part is nothing)."""
    from scipy.special import nctdtr, stdtrit

    critical = float(stdtrit(seeds - 1, 0.5 + LEVEL / 2))
    missed = float(nctdtr(seeds - 1, effect * math.sqrt(seeds), critical))
    return 1.0 if math.isnan(missed) else 1.0 - missed  # its series gives up where nothing is left


def worst_sd(sd: float, seeds: int) -> float:
    """The largest standard deviation that so few seeds leave plausible (one-sided, 90 %)."""
    from scipy.special import chdtri

    return sd * math.sqrt((seeds - 1) / float(chdtri(seeds - 1, 0.90)))
