"""When each trajectory will end, by what the estimators say of its length and of its replica.

The affine part of a replica's time collapses: until a trajectory ends that has L tokens left, its
replica needs M L + c sum_j min(L_j, L) seconds, over all that run there.  With L at the upper
quantile and the others at their medians this is the upper end.  The second term less its own part
is what sharing the replica costs it.  An engine's own queue is not in it.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Ints, Observation


@dataclass(frozen=True)
class Ends:
    """Of n trajectories.  NaN where nothing is known: it is on no replica, or there is no
    forecast."""

    remaining_tokens: Floats
    """(n,) median, given what has been written by now."""
    remaining_upper: Floats
    """(n,) 0.9 quantile."""
    ends_in_s: Floats
    """(n,) seconds from now, at the median."""
    ends_in_upper_s: Floats
    """(n,) at the upper quantile."""
    alone_s: Floats
    """(n,) the same at the median, had it its replica for itself."""

    @classmethod
    def unknown(cls, n: int) -> Self:
        """There is no forecast."""
        return cls(*[np.full(n, np.nan)] * 5)


def predicted_ends(now: Observation, forecast: Forecast, then: Observation) -> Ends:
    """For the rows of `now`, from a forecast about `then`, of the same run and a little older."""
    left, upper = _remaining(now, forecast, then)
    where = now.destination_row
    here = (where >= 0) & np.isfinite(left)
    rows, replica = np.flatnonzero(here), where[here]
    model = forecast.throughput
    fixed_s, each_s = model.fixed_s[replica], model.per_sequence_s[replica]
    shared, shared_upper = _shared(replica, left[rows], upper[rows])
    answer = Ends.unknown(len(left))
    values = (
        (answer.ends_in_s, fixed_s * left[rows] + each_s * shared),
        (answer.ends_in_upper_s, fixed_s * upper[rows] + each_s * shared_upper),
        (answer.alone_s, (fixed_s + each_s) * left[rows]),
    )
    filled = [_filled(column, rows, value) for column, value in values]
    return Ends(left, upper, *filled)


def _remaining(now: Observation, forecast: Forecast, then: Observation) -> tuple[Floats, Floats]:
    """Median and upper quantile of what is left, less what was written since `then`; at least 1."""
    ids, known = now.trajectories.trajectory_id, then.trajectories.trajectory_id
    left, upper = np.full(len(ids), np.nan), np.full(len(ids), np.nan)
    if not len(known):
        return left, upper
    at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    found = known[at] == ids
    at = at[found]
    since = now.trajectories.generated_tokens[found] - then.trajectories.generated_tokens[at]
    left[found] = np.maximum(forecast.length.median[at] - since, 1.0)
    upper[found] = np.maximum(forecast.length.upper[at] - since, left[found])
    return left, upper


def _shared(replica: Ints, left: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """Tokens that a trajectory's replica writes until it ends, at its median and at its upper
    quantile; the others at their medians."""
    if not len(left):
        return left, upper
    span = float(upper.max()) + 1.0  # keeps the replicas apart in one sorted array
    order = np.lexsort((left, replica))
    keys = replica[order] * span + left[order]
    sums = np.concatenate(([0.0], np.cumsum(left[order])))
    first = np.searchsorted(replica[order], replica, side="left")
    last = np.searchsorted(replica[order], replica, side="right")

    def until(tokens: Floats) -> Floats:
        ended = np.searchsorted(keys, replica * span + tokens, side="right")
        return np.asarray(sums[ended] - sums[first] + (last - ended) * tokens)

    return until(left), until(upper) - left + upper


def _filled(column: Floats, rows: NDArray[np.int64], value: Floats) -> Floats:
    column = column.copy()
    column[rows] = value
    return column
