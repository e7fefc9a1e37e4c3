"""What all length baselines share: they answer the estimators' contract, and keep no state."""

import numpy as np

from steersman.estimators.contract import State
from steersman.estimators.forecast import LengthForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Observation


class Plain:
    """The part of a `LengthEstimator` that a replay does not ask of a baseline."""

    def surprises(self) -> Floats:
        """None."""
        return np.zeros(0)

    def reset_on_drift(self, keep: float) -> None:
        """Nobody tells a baseline of drift."""

    def health(self) -> dict[str, float]:
        """It does not watch itself."""
        return {}

    def state_dict(self) -> State:
        """A baseline does not outlive its replay."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to replace."""


def within_cap(observation: Observation, tokens: Floats) -> LengthForecast:
    """Quantiles (n, 3) made legal: ordered, at least one token, at most the cap; one turn left."""
    t = observation.trajectories
    alive = t.phase != Phase.ENDED
    left = np.where(alive, np.maximum(t.max_new_tokens - t.generated_tokens, 0), 0)
    least = np.minimum(left, 1)[:, None]
    legal = np.clip(np.sort(np.ceil(tokens), axis=1), least, left[:, None]).astype(np.float64)
    turns = np.repeat(alive[:, None], tokens.shape[1], axis=1).astype(np.float64)
    nothing_in_common = np.zeros(len(observation.groups))
    return LengthForecast(legal, legal.mean(axis=1), turns, nothing_in_common)
