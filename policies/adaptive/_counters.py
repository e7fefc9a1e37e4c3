"""How far engines' counters have gone between two observations, held against the forecast.

What is compared is plain: an iteration that prefills or verifies drafts takes longer than the
forecast says, and not because the replica is slow.
"""

from typing import NamedTuple

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Ints, Observation, ReplicaTable

LEAST_ITERATIONS = 16
"""As in the estimator: a report between two iterations does no harm then."""
COUNTERS = 5


class Compared(NamedTuple):
    """Replicas that ran plain iterations of a kind that is forecast."""

    rows: Ints
    log_off: Floats
    """(m,) log of measured over forecast seconds."""
    batch: Floats
    """(m,) mean sequences of an iteration."""


def reading(r: ReplicaTable) -> Floats:
    """(COUNTERS, r) iterations, busy seconds, sequences, prompt tokens, drafted tokens."""
    drafted = r.drafted_at.sum(axis=1)
    counters = (r.iterations, r.busy_s, r.sequences_run, r.prefill_tokens, drafted)
    return np.stack(counters).astype(np.float64)


def compared(observation: Observation, forecast: Forecast, grown: Floats) -> Compared:
    """From (COUNTERS, r) differences of two readings, the later one of `observation`."""
    r, f = observation.replicas, forecast.throughput
    n, seconds, sequences, prompt, drafted = grown
    plain = (prompt <= 0) & (drafted <= 0)
    rows = np.flatnonzero(
        r.alive & plain & (f.samples > 0) & (n >= LEAST_ITERATIONS) & (seconds > 0)
    )
    batch = sequences / np.maximum(n, 1.0)
    expected = f.iteration_s(batch, r.kv_cache_usage * r.kv_capacity_tokens) * n
    log_off = np.log(seconds[rows] / np.maximum(expected[rows], 1e-9))
    return Compared(rows, log_off, batch[rows])
