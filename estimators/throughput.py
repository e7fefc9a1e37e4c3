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
4. *Verification* (`_verify_cost`): samples in which tokens were drafted tell nothing of plain
   iterations.  Their residuals over the plain model are what verifying drafts costs.  A replica
   that was never seen without drafts counts each drafted token as a sequence, until it is.
5. *Hand-over* (`_handover`): measured where migrations happen.

Where nothing was measured, the prior is answered.  Dead replicas, and counters that stand still or
run backwards (paused, stale, restarted), add nothing.

It is wrong where time is not affine: mixtures of experts, whose cost per sequence falls with the
batch, fit on the loads seen lately and are overestimated far above them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators import _verify_cost as verify
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
COUNTERS, DRAFTS, DRAFTED, ASKED = 7, 4, 5, 6
"""Columns of a reading that only grow; of these, the drafts and the tokens in them."""


@dataclass
class IterationTime:
    """The estimator of the module's docstring."""

    memory_iterations: float = 20_000.0
    """Iterations after which 63 % is forgotten; short memories lose the load's variation."""

    _known: ReplicaColumns = field(init=False)
    _beta: Floats = field(init=False)
    """(r, FEATURES) fitted to what is known."""
    _verify: Floats = field(init=False)
    """(r, 2) seconds of a verification, and of each token in it."""
    _seen_s: float = field(default=-np.inf, init=False)
    """When the last observation was."""

    def __post_init__(self) -> None:
        self._known = ReplicaColumns(
            {
                # counters: iterations, busy_s, sequences, prompt tokens, drafts, tokens in them;
                # then kv tokens, KV usage above the knee
                "last": np.full(COUNTERS + 2, np.nan),
                "gram": np.zeros((FEATURES, FEATURES)),
                "cross": np.zeros(FEATURES),
                "weight": np.zeros(()),
                "guessed": np.zeros(()),  # 1: never seen without drafts
                "verify_gram": np.zeros((verify.TERMS, verify.TERMS)),
                "verify_cross": np.zeros(verify.TERMS),
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
        backwards = ~(grown[:, :COUNTERS] >= 0).all(axis=1)
        usable = r.alive & ~backwards & (grown[:, 0] >= SAMPLE_ITERATIONS) & (grown[:, 1] > 0)
        fresh = np.where(r.alive[:, None], now, np.nan)
        renewed = usable | backwards | ~r.alive
        known["last"] = np.where(renewed[:, None], fresh, last)
        rows = np.flatnonzero(usable)
        if changed:
            self._refit()
        if len(rows):
            per_iteration = grown[rows] / grown[rows, :1]
            features = np.ones((len(rows), FEATURES))
            features[:, 1] = per_iteration[:, 2]
            features[:, 2:4] = (now[rows, COUNTERS:] + last[rows, COUNTERS:]) / 2
            features[:, 4] = per_iteration[:, 3]
            self._take(observation, rows, grown[rows, 0], features, per_iteration)
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
            verify_s=self._verify[:, 0],
            verify_token_s=self._verify[:, 1],
        )

    def reset_on_drift(self, keep: float) -> None:
        """Keep this share of the evidence."""
        for name in ("gram", "cross", "weight", "moves", "verify_gram", "verify_cross"):
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
        fixed_s, sequence_s = (self._beta / UNITS)[:, :2].T
        self._verify = verify.fit(k["verify_gram"], k["verify_cross"], fixed_s, sequence_s)

    def _take(
        self, observation: Observation, rows: Ints, n: Floats, x: Floats, per_iteration: Floats
    ) -> None:
        """(m,) rows with (m,) iterations, (m, FEATURES) features not yet in units."""
        k = self._known
        seconds, drafted = per_iteration[:, 1], per_iteration[:, DRAFTED]
        if not (drafted.any() or k["guessed"].any()):
            self._learn(rows, n, x / UNITS, seconds)
            return
        guess = (drafted > 0) & ((k["weight"][rows] <= 0) | (k["guessed"][rows] > 0))
        plain = (drafted <= 0) | guess
        # the first plain sample replaces what was guessed
        over = rows[(drafted <= 0) & (k["guessed"][rows] > 0)]
        for name in ("gram", "cross", "weight", "error", "run"):
            k[name][over] = 0.0
        k["guessed"][rows[plain]] = guess[plain]
        x[:, 1] += np.where(guess, drafted, 0.0)
        x = x / UNITS
        if not plain.all():
            share = verify.share_with_drafts(
                per_iteration[~plain, DRAFTS],
                per_iteration[~plain, ASKED],
                verify.asking(observation)[rows[~plain]],
            )
            terms = np.stack((share, drafted[~plain]), axis=1)
            self._verified(rows[~plain], n[~plain], x[~plain], terms, seconds[~plain])
        if plain.any():
            self._learn(rows[plain], n[plain], x[plain], seconds[plain])

    def _learn(self, rows: Ints, n: Floats, x: Floats, seconds: Floats) -> None:
        """(m,) rows with (m,) iterations of (m, FEATURES) features that took (m,) seconds each."""
        k = self._known
        expected = (x * self._beta[rows]).sum(axis=1)
        self._judge(rows, np.log(seconds / expected))
        keep = np.exp(-n / self.memory_iterations)
        weight, relative = _weights(n, seconds, expected)
        k["gram"][rows] *= keep[:, None, None]
        k["gram"][rows] += relative[:, None, None] * x[:, :, None] * x[:, None, :]
        k["cross"][rows] *= keep[:, None]
        k["cross"][rows] += (relative * seconds)[:, None] * x
        k["weight"][rows] = keep * k["weight"][rows] + weight

    def _verified(self, rows: Ints, n: Floats, x: Floats, terms: Floats, seconds: Floats) -> None:
        """Likewise with drafts: (m, 2) share of iterations with any, and tokens per iteration."""
        k = self._known
        plain_s = (x * self._beta[rows]).sum(axis=1)
        expected = plain_s + (terms * self._verify[rows]).sum(axis=1)
        keep = np.exp(-n * terms[:, 0] / verify.MEMORY_ITERATIONS)
        _, relative = _weights(n, seconds, expected)
        k["verify_gram"][rows] *= keep[:, None, None]
        k["verify_gram"][rows] += relative[:, None, None] * terms[:, :, None] * terms[:, None, :]
        k["verify_cross"][rows] *= keep[:, None]
        k["verify_cross"][rows] += (relative * (seconds - plain_s))[:, None] * terms

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
        if not alarm.any():
            return
        struck, factor = rows[alarm], factor[alarm]
        keep = np.minimum(ALARM_ITERATIONS / np.maximum(k["weight"][struck], 1.0), 1.0)
        for kind in ("", "verify_"):
            k[kind + "gram"][struck] *= (keep / factor**2)[:, None, None]
            k[kind + "cross"][struck] *= (keep / factor)[:, None]
        k["weight"][struck] *= keep


def _weights(n: Floats, seconds: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """(m,) iterations that samples are worth, and their weights in the moments."""
    weight = n / np.maximum(np.abs(np.log(seconds / expected)) / OUTLIER, 1.0) ** 2
    # a long stall counts once
    return np.asarray(weight), np.asarray(weight / (expected * np.maximum(seconds, expected)))


def _reading(r: ReplicaTable) -> Floats:
    """(r, COUNTERS + 2) column "last", as it is now."""
    kv = r.kv_cache_usage * r.kv_capacity_tokens
    above = np.where(r.kv_capacity_tokens > 0, np.maximum(r.kv_cache_usage - KNEE, 0.0), 0.0)
    drafts = r.drafted_at[:, :1].sum(axis=1)
    counters = (r.iterations, r.busy_s, r.sequences_run, r.prefill_tokens, drafts)
    asked = r.asked_at[:, :1].sum(axis=1)
    columns = (*counters, r.drafted_at.sum(axis=1), asked, kv, above)
    return np.stack(columns, axis=1).astype(np.float64)


def _mean_context(r: ReplicaTable) -> Floats:
    """(r,) tokens each running sequence holds now; where none runs, the fleet's mean."""
    held = r.kv_cache_usage * r.kv_capacity_tokens
    fleet = held.sum() / max(int(r.running.sum()), 1)
    return np.asarray(np.where(r.running > 0, held / np.maximum(r.running, 1), fleet))


PLUGIN: type[ThroughputEstimator] = IterationTime
