"""What a prompt that was never seen is like: its logit, relative to the common level, is N(mean,
variance).

Two figures of groups of unseen prompts say it without bias, whatever the group's size: the share of
passes, k / n, and half the share of pairs of samples that disagree, k (n - k) / (n (n - 1)).  Each
is what the distribution says, moved towards what new groups say by their share of the last `MEMORY`
prompts; then mean and variance are fitted to both, E[p] and E[p(1-p)].  (Expectation-maximisation
would shrink every group towards the distribution it is to correct: too slow to be right in a run's
first steps, and too narrow where most prompts are either easy or hopeless.)

Groups of one sample say nothing of the variance, which then stays what it was.
"""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.logistic import Logits
from steersman.estimators.observation import Floats

MEMORY = 400.0
"""Unseen prompts after which 63 % is forgotten: the pass rate then has a noise of 0.02, and where
every prompt is seen once only (one epoch) the policy's progress is followed."""
VARIANCES = np.geomspace(0.25, 49.0, 24)
"""Those that are tried; between them the disagreement is interpolated.  15 nodes are too few for a
wider distribution; this one has 67 % degenerate groups of 8 at a mean of 0."""
LEAST_RATE = 1e-3
"""Where nearly all prompts are too easy or too hard the mean must not run off."""
FARTHEST_MEAN, HALVINGS = 64.0, 26
"""Where the mean is looked for by halving, in logit: to 1e-6.  (Newton fails between the nodes of a
wide distribution.)"""


@dataclass
class Population:
    """The distribution and how many prompts it rests on."""

    mean: float = 0.0
    variance: float = 4.0
    """Any pass rate is about as likely as any other."""
    weight: float = 2.0
    """Prompts; before data, few enough to be overruled by the first step."""

    def add(self, passes: Floats, samples: Floats, level: float) -> None:
        """(m,) groups of prompts that were never seen before."""
        count = len(passes)
        if not count:
            return
        self.weight = min(self.weight + count, max(MEMORY, count))
        rate, disagreement = (float(f[0]) for f in _figures(self.mean + level, self._one))
        rate += (float((passes / samples).mean()) - rate) * count / self.weight
        rate = min(max(rate, LEAST_RATE), 1.0 - LEAST_RATE)
        paired = samples > 1.0
        if paired.any():
            k, n = passes[paired], samples[paired]
            seen = float((k * (n - k) / (n * (n - 1.0))).mean())
            disagreement += (seen - disagreement) * len(k) / self.weight
            self.variance = _variance(rate, disagreement)
        self.mean = float(_means(rate, self._one)[0]) - level

    @property
    def _one(self) -> Floats:
        return np.array([self.variance])


def _figures(mean: float | Floats, variance: Floats) -> tuple[Floats, Floats]:
    """(m,) E[p] and E[p(1-p)] of (m,) means and variances."""
    logits = Logits.gaussian(mean + np.zeros_like(variance), variance)
    p, uncertain = logits.pass_moments()
    return p, p * (1.0 - p) - uncertain


def _means(rate: float, variance: Floats) -> Floats:
    """(m,) the mean at which E[p] is `rate`, for each variance."""
    low, high = np.full_like(variance, -FARTHEST_MEAN), np.full_like(variance, FARTHEST_MEAN)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        above = _figures(middle, variance)[0] > rate
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(0.5 * (low + high))


def _variance(rate: float, disagreement: float) -> float:
    """The variance at which E[p(1-p)] is `disagreement` while E[p] is `rate`."""
    found = _figures(_means(rate, VARIANCES), VARIANCES)[1]
    # the wider the less, but for the error of 15 nodes
    falling = np.minimum.accumulate(found)
    return float(np.exp(np.interp(-disagreement, -falling, np.log(VARIANCES))))
