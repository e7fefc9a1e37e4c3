"""Iteration time of every replica, fitted online from the engines' counters.

    tau(b, kv, p) = M + c b + k kv + knee max(kv / capacity - KNEE, 0) + prefill p

for b sequences, kv tokens of context and p prompt tokens computed in the iteration.  Between two
observations an engine adds iterations, seconds, sequences and prompt tokens; divided by the first
they are one sample.  kv, which has no counter, is the mean of both ends.

1. *Learn.*  Samples are weighted by their iterations, relative to the expected time, and forget
   exponentially: recursive least squares with a forgetting factor, kept as moments.  One that is
   off by more than a factor counts less (a stall, a compilation, a weight update).
2. *Fit* (`_iteration_fit`).  A shape for the fleet, a speed per replica, and per replica its own
   departure from both; coefficients are never negative.  A replica of a type twice as slow is
   right after its first sample.
3. *Alarm* (`_speed_alarm`).  Errors are standardised by the replica's recent error.  An alarm says
   by what factor the times have changed: what is known is scaled by it, and all but
   `ALARM_ITERATIONS` worth of it is forgotten, so that if the change was not one of speed the next
   samples soon say so.  A load never seen is no alarm: the fit follows its first sample.
4. *Hand-over* (`_handover`): measured where migrations happen.

Where nothing was measured, the prior is answered.  Dead replicas, and counters that stand still or
run backwards (paused, stale, restarted), add nothing.

It is wrong where time is not affine: mixtures of experts, whose cost per sequence falls with the
batch, fit on the loads seen lately and are overestimated far above them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._handover import fade, handover_s, moves_seen
from steersman.estimators._iteration_fit import FEATURES, UNITS, fit
from steersman.estimators._replica_columns import ReplicaColumns
from steersman.estimators._speed_alarm import EMPTY_RUN, watch
from steersman.estimators.contract import State, ThroughputEstimator
from steersman.estimators.forecast import KNEE, ThroughputForecast
from steersman.estimators.observation import Floats, Ints, Observation, ReplicaTable

PRIOR_FIXED_S = 0.01
"""M before anything ran: an 8-billion-parameter model on one current accelerator."""
SAMPLE_ITERATIONS = 16
"""Iterations a sample spans at least, so that a report between two iterations does no harm."""
OUTLIER = float(np.log(2.0))
"""A sample off by more than this (log) counts less; the change of a speed is less, or alarms."""
ALARM_ITERATIONS = 500.0
"""Iterations that the evidence before an alarm is worth afterwards, at most."""
ERROR_SAMPLES = 100.0
"""Samples after which 63 % of the recent error is forgotten."""
ERROR_PRIOR, ERROR_PRIOR_SAMPLES = 0.05, 3.0
"""Relative error expected of the first samples, and what that guess weighs."""
LEAST_DEVIATION = 0.03
"""Relative deviation below which errors alarm nobody."""
MEAN_TO_DEVIATION = 1.25
"""Deviation over mean absolute value, of normal errors."""


@dataclass
class IterationTime:
    """The estimator of the module's docstring."""

    memory_iterations: float = 20_000.0
    """Iterations after which 63 % is forgotten; short memories lose the load's variation."""

    _known: ReplicaColumns = field(init=False)
    _beta: Floats = field(init=False)
    """(r, FEATURES) fitted to what is known."""
    _seen_s: float = field(default=-np.inf, init=False)
    """When the last observation was."""

    def __post_init__(self) -> None:
        self._known = ReplicaColumns(
            {
                # iterations, busy_s, sequences, prompt tokens, kv tokens, KV usage above the knee
                "last": np.full(6, np.nan),
                "gram": np.zeros((FEATURES, FEATURES)),
                "cross": np.zeros(FEATURES),
                "weight": np.zeros(()),
                "run": EMPTY_RUN,
                "error": np.zeros(2),  # recent relative errors: sum and number
                "moves": np.zeros(2),
            }
        )
        self._refit()

    def observe(self, observation: Observation) -> None:
        """Take the counters' differences since the last observation as one sample per replica."""
        r, known = observation.replicas, self._known
        changed = known.align(r.names)
        known["moves"] = fade(known["moves"], moves_seen(observation, self._seen_s))
        self._seen_s = observation.now_s
        now, last = _reading(r), known["last"]
        grown = now - last
        backwards = ~(grown[:, :4] >= 0).all(axis=1)
        usable = r.alive & ~backwards & (grown[:, 0] >= SAMPLE_ITERATIONS) & (grown[:, 1] > 0)
        fresh = np.where(r.alive[:, None], now, np.nan)
        renewed = usable | backwards | ~r.alive
        known["last"] = np.where(renewed[:, None], fresh, last)
        rows = np.flatnonzero(usable)
        if changed:
            self._refit()
        if len(rows):
            n = grown[rows, 0]
            features = np.ones((len(rows), FEATURES))
            features[:, 1] = grown[rows, 2] / n
            features[:, 2:4] = (now[rows, 4:] + last[rows, 4:]) / 2
            features[:, 4] = grown[rows, 3] / n
            self._learn(rows, n, features / UNITS, grown[rows, 1] / n)
            self._refit()

    def forecast(self, observation: Observation) -> ThroughputForecast:
        """The model of every replica; of one that never ran, the fleet's."""
        r, known = observation.replicas, self._known
        if known.align(r.names):
            self._refit()
        beta = self._beta / UNITS
        total, number = known["error"].T
        return ThroughputForecast(
            fixed_s=beta[:, 0],
            per_sequence_s=beta[:, 1] + beta[:, 2] * _mean_context(r),
            sequence_s=beta[:, 1],
            token_s=beta[:, 2],
            knee_s=beta[:, 3],
            kv_capacity_tokens=r.kv_capacity_tokens.astype(np.float64),
            prefill_token_s=beta[:, 4],
            handover_s=handover_s(known["moves"]),
            relative_error=np.where(number > 0, total / np.maximum(number, 1e-9), np.nan),
            samples=known["weight"].astype(np.int64),
        )

    def reset_on_drift(self, keep: float) -> None:
        """Keep this share of the evidence."""
        for name in ("gram", "cross", "weight", "moves"):
            self._known[name] = self._known[name] * keep
        self._refit()

    def health(self) -> Mapping[str, float]:
        """`mape`: recent mean of |predicted - measured| / measured, one sample ahead."""
        total, number = self._known["error"].sum(axis=0)
        return {"mape": float(total / number) if number > 0 else float("nan")}

    def state_dict(self) -> State:
        """What is known by replica."""
        seen = self._seen_s if np.isfinite(self._seen_s) else None
        return {"known": self._known.state_dict(), "seen_s": seen}

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self._known.load_state_dict(state["known"])
        seen = state["seen_s"]
        self._seen_s = -np.inf if seen is None else float(seen)
        self._refit()

    def _refit(self) -> None:
        k = self._known
        self._beta = fit(k["gram"], k["cross"], k["weight"], PRIOR_FIXED_S)

    def _learn(self, rows: Ints, n: Floats, x: Floats, seconds: Floats) -> None:
        """(m,) rows with (m,) iterations of (m, FEATURES) features that took (m,) seconds each."""
        k = self._known
        expected = (x * self._beta[rows]).sum(axis=1)
        off = np.log(seconds / expected)
        self._judge(rows, off)
        keep = np.exp(-n / self.memory_iterations)
        weight = n / np.maximum(np.abs(off) / OUTLIER, 1.0) ** 2
        relative = weight / (expected * np.maximum(seconds, expected))  # a long stall counts once
        k["gram"][rows] *= keep[:, None, None]
        k["gram"][rows] += relative[:, None, None] * x[:, :, None] * x[:, None, :]
        k["cross"][rows] *= keep[:, None]
        k["cross"][rows] += (relative * seconds)[:, None] * x
        k["weight"][rows] = keep * k["weight"][rows] + weight

    def _judge(self, rows: Ints, off: Floats) -> None:
        """Count the (m,) log errors of predictions, and follow sudden changes of speed."""
        k = self._known
        total, number = k["error"][rows].T
        mean = (total + ERROR_PRIOR_SAMPLES * ERROR_PRIOR) / (number + ERROR_PRIOR_SAMPLES)
        deviation = np.maximum(MEAN_TO_DEVIATION * mean, LEAST_DEVIATION)
        k["run"][rows], alarm, factor = watch(k["run"][rows], off, deviation)
        seen = k["weight"][rows] > 0
        error = np.minimum(np.abs(np.expm1(-off)), 1.0)
        k["error"][rows] *= np.where(seen, np.exp(-1 / ERROR_SAMPLES), 1.0)[:, None]
        k["error"][rows] += np.where(seen, np.stack((error, np.ones_like(error))), 0.0).T
        struck, factor = rows[alarm], factor[alarm]
        keep = np.minimum(ALARM_ITERATIONS / np.maximum(k["weight"][struck], 1.0), 1.0)
        k["gram"][struck] *= (keep / factor**2)[:, None, None]
        k["cross"][struck] *= (keep / factor)[:, None]
        k["weight"][struck] *= keep


def _reading(r: ReplicaTable) -> Floats:
    """(r, 6) column "last", as it is now."""
    kv = r.kv_cache_usage * r.kv_capacity_tokens
    above = np.where(r.kv_capacity_tokens > 0, np.maximum(r.kv_cache_usage - KNEE, 0.0), 0.0)
    columns = (r.iterations, r.busy_s, r.sequences_run, r.prefill_tokens, kv, above)
    return np.stack(columns, axis=1).astype(np.float64)


def _mean_context(r: ReplicaTable) -> Floats:
    """(r,) tokens each running sequence holds now; where none runs, the fleet's mean."""
    held = r.kv_cache_usage * r.kv_capacity_tokens
    fleet = held.sum() / max(int(r.running.sum()), 1)
    return np.asarray(np.where(r.running > 0, held / np.maximum(r.running, 1), fleet))


PLUGIN: type[ThroughputEstimator] = IterationTime
