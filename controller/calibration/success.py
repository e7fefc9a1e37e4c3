"""Replays pass rates step by step: forecast every group, score the forecast, then learn from it.

Scores, over all groups from `scored_from` on (a prompt's first visit counts too):

- `brier`: mean over samples of (forecast pass probability - reward)^2; lower is better;
- `degenerate_auc`: AUC of the forecast P(degenerate) for the group's rewards being all equal;
- `ece`: expected calibration error of P(degenerate): the mean over groups of |mean forecast - share
  degenerate| of their bin, 10 bins of equal width.

The same figures for what one would do without the estimator come from the same replay: see
`success_baselines`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from steersman.controller.calibration.success_baselines import baselines
from steersman.estimators.logistic import degenerate_probability, pass_rate
from steersman.estimators.observation import Bools, Floats, Ints
from steersman.estimators.success import DynamicLogistic

BINS = 10

Step = tuple[Ints, Floats]
"""(m,) prompt keys and the (m, n) rewards, 0..1, of a group of n samples of each."""


class Predictor(Protocol):
    """Forecasts a step's groups and then learns how they ended."""

    def predict(self, keys: Ints, size: int, step: int) -> tuple[Floats, Floats]:
        """(m,) pass probability, and probability that a group of `size` is degenerate."""

    def learn(self, keys: Ints, rewards: Floats, step: int) -> None:
        """(m, n) rewards of the step."""


class Logistic:
    """The dynamic logistic estimator as a predictor."""

    def __init__(self, estimator: DynamicLogistic) -> None:
        self._estimator = estimator

    def predict(self, keys: Ints, size: int, step: int) -> tuple[Floats, Floats]:
        """As `Predictor` says."""
        mean, variance = self._estimator.predict(keys, step)
        sizes = np.full(len(keys), float(size))
        return pass_rate(mean, variance), degenerate_probability(mean, variance, sizes)

    def learn(self, keys: Ints, rewards: Floats, step: int) -> None:
        """As `Predictor` says."""
        samples = np.full(len(keys), rewards.shape[1])
        self._estimator.learn(keys, rewards.sum(axis=1), samples, step)


def calibration(
    steps: Sequence[Step], estimator: DynamicLogistic | None = None, scored_from: int = 0
) -> dict[str, Any]:
    """The estimator's scores (a fresh one by default), and under `baselines` those of the others.

    Steps before `scored_from` are learned and not scored.
    """
    mine = replay(steps, Logistic(estimator or DynamicLogistic()), scored_from)
    others = {name: replay(steps, other, scored_from) for name, other in baselines().items()}
    return {**mine, "baselines": others}


def replay(steps: Sequence[Step], predictor: Predictor, scored_from: int = 0) -> dict[str, float]:
    """The three scores of one predictor."""
    errors, forecasts, outcomes = [], [], []
    for step, (keys, rewards) in enumerate(steps):
        passing, degenerate = predictor.predict(keys, rewards.shape[1], step)
        predictor.learn(keys, rewards, step)
        if step >= scored_from:
            errors.append(((passing[:, None] - rewards) ** 2).ravel())
            forecasts.append(degenerate)
            outcomes.append(rewards.max(axis=1) == rewards.min(axis=1))
    forecast, outcome = np.concatenate(forecasts), np.concatenate(outcomes)
    return {
        "brier": float(np.concatenate(errors).mean()),
        "degenerate_auc": ranking_auc(forecast, outcome),
        "ece": calibration_error(forecast, outcome),
    }


def ranking_auc(forecast: Floats, outcome: Bools) -> float:
    """P(a true case has the higher forecast than a false one), ties half; NaN without both."""
    positives, negatives = int(outcome.sum()), int((~outcome).sum())
    if not positives or not negatives:
        return float("nan")
    _, place, counts = np.unique(forecast, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - 0.5 * (counts - 1))[place]
    won = rank[outcome].sum() - 0.5 * positives * (positives + 1)
    return float(won / (positives * negatives))


def calibration_error(forecast: Floats, outcome: Bools) -> float:
    """The module's `ece`."""
    bin_ = np.minimum((forecast * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(bin_, weights=forecast - outcome, minlength=BINS)
    return float(np.abs(gap).sum() / len(forecast))
