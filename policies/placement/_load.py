"""What is on each replica, and when it will therefore end."""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import NO_ROW, Bools, Floats, Ints, Observation


@dataclass
class Load:
    """Predicted load of r replicas, what is on its way to them included; arrays are its own."""

    fixed_s: Floats
    """M"""
    per_sequence_s: Floats
    """c"""
    longest: Floats
    """Remaining tokens of the longest trajectory."""
    longest_row: Ints
    """Its row in the observation, or `NO_ROW`."""
    second: Floats
    """Remaining tokens of the second longest."""
    work: Floats
    """Remaining tokens of all."""

    @classmethod
    def of(cls, observation: Observation, forecast: Forecast) -> "Load":
        """As forecast: upper quantile for the longest, expectation for the sum."""
        length, here = forecast.length, observation.destination_row >= 0
        return cls.with_lengths(
            observation, forecast, length.upper, length.mean_remaining_tokens, here
        )

    @classmethod
    def with_lengths(
        cls, observation: Observation, forecast: Forecast, long: Floats, mean: Floats, keep: Bools
    ) -> "Load":
        """Load of the rows in `keep`, which are all on a replica, if they had these lengths."""
        count, rows = len(observation.replicas), observation.destination_row
        here = np.flatnonzero(keep)
        order = here[np.lexsort((here, long[here], rows[here]))]
        replica, tail = np.unique(rows[order][::-1], return_index=True)
        last = len(order) - 1 - tail
        longest, second = np.zeros(count), np.zeros(count)
        longest_row = np.full(count, NO_ROW, dtype=np.int64)
        longest[replica], longest_row[replica] = long[order[last]], order[last]
        two = (last > 0) & (rows[order[last - 1]] == replica)
        second[replica[two]] = long[order[last[two] - 1]]
        work = np.bincount(rows[here], weights=mean[here], minlength=count).astype(np.float64)
        t = forecast.throughput
        return cls(t.fixed_s, t.per_sequence_s, longest, longest_row, second, work)

    @property
    def end_s(self) -> Floats:
        """(r,) seconds until each replica has finished what is on it: M * longest + c * work."""
        return np.asarray(self.fixed_s * self.longest + self.per_sequence_s * self.work)
