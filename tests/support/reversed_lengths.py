"""A length estimator that is wrong in earnest: the longest expected is said to have least left."""

from dataclasses import replace

import numpy as np

from steersman.estimators.forecast import LengthForecast
from steersman.estimators.length import SurvivalLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation


class ReversedLength(SurvivalLength):
    """Learns as usual; within each tick, ranks of the unfinished are reversed."""

    def forecast(self, observation: Observation) -> LengthForecast:
        """What the estimator says of whoever has the opposite rank."""
        return backwards(observation, super().forecast(observation))


def backwards(observation: Observation, honest: LengthForecast) -> LengthForecast:
    """`honest` with the ranks of the unfinished reversed, within what caps leave."""
    t = observation.trajectories
    rows = np.flatnonzero(t.phase != Phase.ENDED)
    order = rows[np.argsort(honest.median[rows], kind="stable")]
    quantiles, mean = honest.remaining_tokens.copy(), honest.mean_remaining_tokens.copy()
    left = (t.max_new_tokens - t.generated_tokens)[order]
    quantiles[order] = np.minimum(quantiles[order[::-1]], left[:, None])
    mean[order] = np.minimum(mean[order[::-1]], left)
    return replace(honest, remaining_tokens=quantiles, mean_remaining_tokens=mean)
