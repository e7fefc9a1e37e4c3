"""How good length forecasts were.

- q90_coverage: share of trajectories that wrote at most their q90; 0.90 is right.  Where the cap is
  the q90 it holds by itself, so that even a perfect forecast comes out a little above.
- q10_q90_coverage: share between q10 and q90; 0.80 is right.
- pinball: mean over the three quantiles and all trajectories of max(q (r - f), (q - 1)(r - f)), in
  tokens, the proper score of a quantile forecast f of r remaining tokens; lower is better.
- kendall_tau: rank correlation between q50 and the truth among the trajectories of one snapshot,
  averaged over snapshots, each weighted by its trajectories.
- tail_recall: of the longest tenth of a snapshot's trajectories, the share that are among the tenth
  with the largest q90.
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.forecast import QUANTILES, LengthForecast
from steersman.estimators.observation import Floats

FEWEST = 10
"""Trajectories in a snapshot from which ranks are compared."""


@dataclass
class LengthScores:
    """Collects snapshots."""

    _forecast: list[Floats] = field(default_factory=list)
    _truth: list[Floats] = field(default_factory=list)

    def add(self, forecast: LengthForecast, truth: Floats) -> None:
        """One snapshot; rows whose truth is NaN do not count."""
        rows = np.flatnonzero(np.isfinite(truth))
        self._forecast.append(forecast.remaining_tokens[rows])
        self._truth.append(truth[rows])

    @property
    def count(self) -> int:
        """Forecasts scored."""
        return sum(len(truth) for truth in self._truth)

    def result(self) -> dict[str, float]:
        """By name, as the module's docstring says; NaN where nothing was alive."""
        forecast = np.concatenate([*self._forecast, np.zeros((0, len(QUANTILES)))])
        truth = np.concatenate([*self._truth, np.zeros(0)])
        if not len(truth):
            return dict.fromkeys((*_POOLED, "kendall_tau", "tail_recall"), np.nan)
        below, above = truth[:, None] <= forecast, truth[:, None] >= forecast
        error = truth[:, None] - forecast
        levels = np.array(QUANTILES)
        return {
            "q90_coverage": float(below[:, 2].mean()),
            "q10_q90_coverage": float((below[:, 2] & above[:, 0]).mean()),
            "pinball": float(np.maximum(levels * error, (levels - 1) * error).mean()),
            "kendall_tau": self._kendall_tau(),
            "tail_recall": self._tail_recall(),
        }

    def _kendall_tau(self) -> float:
        from scipy.stats import kendalltau

        tau, weight = [0.0], [1e-12]
        for forecast, truth in self._ranked():
            value = kendalltau(forecast[:, 1], truth).statistic
            if np.isfinite(value):  # all forecasts equal: no ranks, which is worth 0
                tau.append(float(value))
            else:
                tau.append(0.0)
            weight.append(len(truth))
        return float(np.average(tau, weights=weight))

    def _tail_recall(self) -> float:
        found = sought = 0
        for forecast, truth in self._ranked():
            count = max(round(0.1 * len(truth)), 1)
            longest = set(np.argsort(-truth, kind="stable")[:count].tolist())
            chosen = set(np.argsort(-forecast[:, 2], kind="stable")[:count].tolist())
            found, sought = found + len(longest & chosen), sought + count
        return found / sought if sought else float("nan")

    def _ranked(self) -> list[tuple[Floats, Floats]]:
        pairs = zip(self._forecast, self._truth, strict=True)
        return [(forecast, truth) for forecast, truth in pairs if len(truth) >= FEWEST]


_POOLED = ("q90_coverage", "q10_q90_coverage", "pinball")
