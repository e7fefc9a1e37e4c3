"""A survival curve over age alone, the same for all: Kaplan-Meier with forgetting.

Whoever is alive ages through the bins of log length, whoever finishes is an event, whoever is cut
off just stops (`estimators/_hazard`).  A trajectory of age a exceeds L with probability
S(L) / S(a).
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.controller.calibration.plain import Plain, within_cap
from steersman.estimators._hazard import Hazard
from steersman.estimators.forecast import QUANTILES, LengthForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation

SPAN, BINS = (0.0, 14.0), 140
"""One to a million tokens; bins of 10 %."""
PRIOR_RATE = 1.5
"""Where nothing was seen, half of what has come far ends within +60 %."""
MEMORY_STEPS = 6.0
"""As the estimator's own."""


@dataclass
class CurveBaseline(Plain):
    """The baseline of the module's docstring."""

    _curve: Hazard = field(
        default_factory=lambda: Hazard(*SPAN, np.full(BINS, PRIOR_RATE), 1.0), init=False
    )
    _ids: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)
    """Alive at the last observation, ascending."""
    _ages: Floats = field(default_factory=lambda: np.zeros(0), init=False)
    """Their log ages."""
    _step: int = field(default=0, init=False)

    def observe(self, observation: Observation) -> None:
        """Age everyone, count the ended, forget at a new step."""
        step = observation.trainer.step
        self._curve.scale(float(np.exp((self._step - step) / MEMORY_STEPS)))
        self._step = step
        t, e = observation.trajectories, observation.ended
        alive = np.flatnonzero(t.phase != Phase.ENDED)
        ids = np.concatenate((t.trajectory_id[alive], e.trajectory_id))
        now = _log(np.concatenate((t.generated_tokens[alive], e.generated_tokens)))
        finished = len(alive) + np.flatnonzero(~e.censored)
        self._curve.add(self._before(ids), now, finished)
        self._ids, self._ages = ids[: len(alive)], now[: len(alive)]

    def forecast(self, observation: Observation) -> LengthForecast:
        """The prior's quantiles while nothing was seen."""
        t = observation.trajectories
        edges, cumulative = self._curve.edges, self._curve.cumulative()
        spent = np.interp(_log(t.generated_tokens), edges, cumulative)
        target = spent[:, None] - np.log1p(-np.array(QUANTILES))
        total = np.exp(np.interp(target, cumulative, edges))
        return within_cap(observation, total - t.generated_tokens[:, None])

    def _before(self, ids: Ints) -> Floats:
        """(m,) log age at the last observation; the youngest for those not seen then."""
        if not len(self._ids):
            return np.full(len(ids), SPAN[0])
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._ages[at], SPAN[0])


def _log(tokens: Ints) -> Floats:
    return np.asarray(np.log(np.maximum(tokens, 1)))
