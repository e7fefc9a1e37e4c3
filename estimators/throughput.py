"""Iteration time of every replica, tau(b) = M + c b, fitted online from the engines' counters.

Between two observations an engine adds `iterations`, `busy_s` and `sequences_run`; dividing by the
first gives one sample of (batch, seconds).  Per replica these go into a 2 x 2 recursive least
squares with exponential forgetting, weighted by iterations.  The fleet's pooled fit is the prior of
every replica (worth `PRIOR_ITERATIONS`), so a new replica starts as an average one, and where
one replica's batch never varies the others tell M from c.  The pooled fit itself is held by a prior
on the ratio M/c alone, scaled to the times seen.  Both figures are kept non-negative.

`prefill_token_s` is not measured: a prompt token is charged like a sequence's token, c, but no less
than a chunk of `CHUNK_TOKENS` in one iteration's fixed part.  It is an upper estimate; prompts
batch better.

A prefill inflates the iterations it falls into.  So a sample counts little (`DIRTY_WEIGHT`) when
anything was placed on its replica since the last one, or its engine has a queue to take from.

Dead replicas, and counters that stand still or run backwards (paused, stale, restarted), add
nothing.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.contract import State, ThroughputEstimator
from steersman.estimators.forecast import ThroughputForecast
from steersman.estimators.observation import Bools, Floats, Ints, Observation

PRIOR_FIXED_S = 0.01
"""M before anything ran: an 8-billion-parameter model on one current accelerator."""
PRIOR_KNEE = 64.0
"""M/c before it is known: the batch at which the sequences cost as much as the fixed part."""
PRIOR_ITERATIONS = 200.0
"""Iterations of its own at which a replica's fit weighs as much as the fleet's."""
SAMPLE_ITERATIONS = 16
"""Iterations a sample spans at least, so that a report between two iterations does no harm."""
DIRTY_WEIGHT = 0.02
"""Weight of an iteration that may hold a prefill: enough to start from, soon outweighed."""
CHUNK_TOKENS = 2048
"""Prompt tokens an engine puts into one iteration (vLLM's default for online serving)."""
OUTLIER_SHARE = 1.0
"""A sample off by more than this share of the expected time (a prefill, a compile) counts less."""


@dataclass
class AffineThroughput:
    """The estimator of the module's docstring."""

    memory_iterations: float = 20_000.0
    """Iterations after which 63 % is forgotten; short memories lose the batch's variation."""

    _names: tuple[str, ...] = field(default=(), init=False)
    _counters: Floats = field(default_factory=lambda: np.zeros((3, 0)), init=False)
    """iterations, busy_s, sequences_run at the last observation; NaN: not seen."""
    _sampled_s: Floats = field(default_factory=lambda: np.zeros(0), init=False)
    """When the last sample of each replica was taken."""
    _queued: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_), init=False)
    """Whether its engine had a queue then."""
    _moments: Floats = field(default_factory=lambda: np.zeros((5, 0)), init=False)
    """Weighted sums of 1, b, b^2, t, b t per replica: everything a line through (b, t) needs."""

    def observe(self, observation: Observation) -> None:
        """Take the counters' differences since the last observation as one sample per replica."""
        r = observation.replicas
        self._align(r.names)
        now = np.stack((r.iterations, r.busy_s, r.sequences_run)).astype(np.float64)
        iterations, busy_s, sequences = now - self._counters
        usable = r.alive & (iterations >= SAMPLE_ITERATIONS) & (busy_s > 0) & (sequences >= 0)
        restart = ~(r.alive & (iterations >= 0) & (busy_s >= 0) & (sequences >= 0))
        fresh = np.where(r.alive, now, np.nan)
        self._counters = np.where(usable | restart, fresh, self._counters)
        dirty = self._queued | (_last_placed_s(observation) >= self._sampled_s)
        self._sampled_s = np.where(usable | restart, observation.now_s, self._sampled_s)
        self._queued = np.where(usable | restart, False, self._queued) | (r.waiting > 0)
        rows = np.flatnonzero(usable)
        if len(rows):
            n = iterations[rows]
            weight = n * np.where(dirty[rows], DIRTY_WEIGHT, 1.0)
            self._learn(rows, n, weight, sequences[rows] / n, busy_s[rows] / n)

    def forecast(self, observation: Observation) -> ThroughputForecast:
        """M and c of every replica; of one that never ran, the fleet's."""
        self._align(observation.replicas.names)
        fixed_s, per_sequence_s = self._fit()
        return ThroughputForecast(
            fixed_s,
            per_sequence_s,
            np.maximum(per_sequence_s, fixed_s / CHUNK_TOKENS),
            self._moments[0].astype(np.int64),
        )

    def reset_on_drift(self, keep: float) -> None:
        """Keep this share of the evidence."""
        self._moments *= keep

    def state_dict(self) -> State:
        """Moments and last counters by replica (NaN as None)."""
        return {
            "names": list(self._names),
            "counters": [[None if math.isnan(x) else x for x in row] for row in self._counters],
            "sampled_s": self._sampled_s.tolist(),
            "queued": self._queued.tolist(),
            "moments": self._moments.tolist(),
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self._names = tuple(state["names"])
        self._counters = np.array(state["counters"], dtype=np.float64).reshape(3, -1)
        self._sampled_s = np.array(state["sampled_s"], dtype=np.float64)
        self._queued = np.array(state["queued"], dtype=np.bool_)
        self._moments = np.array(state["moments"], dtype=np.float64).reshape(5, -1)

    def _align(self, names: tuple[str, ...]) -> None:
        """Bring the columns into the order of `names`; unknown ones start empty."""
        if names == self._names:
            return
        old = {name: row for row, name in enumerate(self._names)}
        rows = np.array([old.get(name, -1) for name in names], dtype=np.int64)
        counters, moments = np.full((3, len(names)), np.nan), np.zeros((5, len(names)))
        sampled_s, queued = np.zeros(len(names)), np.zeros(len(names), dtype=np.bool_)
        new, known = np.flatnonzero(rows >= 0), rows[rows >= 0]
        counters[:, new], moments[:, new] = self._counters[:, known], self._moments[:, known]
        sampled_s[new], queued[new] = self._sampled_s[known], self._queued[known]
        self._names, self._counters, self._moments = names, counters, moments
        self._sampled_s, self._queued = sampled_s, queued

    def _learn(self, rows: Ints, n: Floats, weight: Floats, batch: Floats, seconds: Floats) -> None:
        fixed_s, per_sequence_s = self._fit()
        expected = fixed_s[rows] + per_sequence_s[rows] * batch
        known = self._moments[0].sum() >= PRIOR_ITERATIONS
        off = np.abs(seconds - expected) / np.maximum(OUTLIER_SHARE * expected, 1e-9)
        if known:
            weight = weight / np.maximum(off, 1.0) ** 2
        self._moments[:, rows] *= np.exp(-n / self.memory_iterations)
        self._moments[:, rows] += weight * np.stack(
            (np.ones(len(rows)), batch, batch**2, seconds, batch * seconds)
        )

    def _fit(self) -> tuple[Floats, Floats]:
        """(r,) M and c: each replica's moments on top of the fleet's, these on top of the prior."""
        fleet = self._moments.sum(axis=1)
        if fleet[0] <= 0:
            count = len(self._names)
            prior = PRIOR_FIXED_S
            return np.full(count, prior), np.full(count, prior / PRIOR_KNEE)
        per_iteration = (fleet / fleet[0])[:, None]
        pooled = _line(per_iteration + _knee_prior(per_iteration))
        implied = per_iteration.copy()
        implied[3] = pooled[0] + pooled[1] * implied[1]
        implied[4] = pooled[0] * implied[1] + pooled[1] * implied[2]
        return _line(self._moments + PRIOR_ITERATIONS * (implied + _knee_prior(implied)))


def _last_placed_s(observation: Observation) -> Floats:
    """(r,) when something was last placed on each replica."""
    t = observation.trajectories
    last = np.full(len(observation.replicas), -np.inf)
    here = np.flatnonzero((t.replica_row >= 0) & np.isfinite(t.placed_s))
    np.maximum.at(last, t.replica_row[here], t.placed_s[here])
    return last


def _knee_prior(moments: Floats) -> Floats:
    """Weak moments at b = 0 and twice the mean on the line of ratio `PRIOR_KNEE` at the mean."""
    batch, seconds = moments[1] / moments[0], moments[3] / moments[0]
    slope = seconds / (PRIOR_KNEE + batch)
    weight, far = 1e-3, 2 * batch + 2
    at_zero, at_far = slope * PRIOR_KNEE, slope * (PRIOR_KNEE + far)
    one = np.ones_like(batch)
    return np.asarray(weight * np.stack((2 * one, far, far**2, at_zero + at_far, far * at_far)))


def _line(moments: Floats) -> tuple[Floats, Floats]:
    """Least-squares intercept and slope, each at least 0, from (5, m) moments."""
    w, x, xx, y, xy = moments
    determinant = np.maximum(w * xx - x * x, 1e-30)
    fixed, slope = (xx * y - x * xy) / determinant, (w * xy - x * y) / determinant
    slope = np.where(fixed < 0, xy / np.maximum(xx, 1e-30), slope)
    fixed = np.where(slope < 0, y / w, np.maximum(fixed, 0.0))
    return np.asarray(fixed), np.asarray(np.maximum(slope, 0.0))


PLUGIN: type[ThroughputEstimator] = AffineThroughput
