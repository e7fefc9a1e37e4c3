"""What is on each replica, and when it will therefore end."""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import NO_ROW, Floats, Ints, Observation


@dataclass
class Load:
    """Predicted load of r replicas; `end_s` = M * longest + c * work."""

    fixed_s: Floats
    """M"""
    per_sequence_s: Floats
    """c"""
    longest: Floats
    """Remaining tokens of the longest trajectory, upper quantile."""
    longest_row: Ints
    """Its row in the observation, or `NO_ROW`."""
    second: Floats
    """Remaining tokens of the second longest, upper quantile."""
    work: Floats
    """Expected remaining tokens of all."""

    @classmethod
    def of(cls, observation: Observation, forecast: Forecast) -> "Load":
        """Load of every replica, what is on its way to it included."""
        count = len(observation.replicas)
        rows = observation.destination_row
        here = np.flatnonzero(rows >= 0)
        upper, at = forecast.length.upper, rows[here]
        work = np.bincount(at, weights=forecast.length.mean_remaining_tokens[here], minlength=count)
        order = here[np.lexsort((here, upper[here], at))]
        replica, last = np.unique(rows[order][::-1], return_index=True)
        last = len(order) - 1 - last
        longest, second = np.zeros(count), np.zeros(count)
        longest_row = np.full(count, NO_ROW, dtype=np.int64)
        longest[replica], longest_row[replica] = upper[order[last]], order[last]
        has_two = (last > 0) & (rows[order[last - 1]] == replica)
        second[replica[has_two]] = upper[order[last[has_two] - 1]]
        t = forecast.throughput
        return cls(t.fixed_s, t.per_sequence_s, longest, longest_row, second, work)

    @property
    def end_s(self) -> Floats:
        """(r,) seconds until each replica has finished what is on it."""
        return np.asarray(self.fixed_s * self.longest + self.per_sequence_s * self.work)
