"""What is believed of every prompt's logit, relative to the level common to all of them.

Evidence of the present weight version is only summed (so that it does not matter in which parts it
comes) and taken when the version is over, or whenever somebody asks.
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._population import Population
from steersman.estimators._states import KeyedStates, Rows, Singles
from steersman.estimators.logistic import posterior
from steersman.estimators.observation import Bools, Floats, Ints

OFFSET, VARIANCE, PASSES, SAMPLES, LAST = range(5)
"""Rows of the table: belief before the present version's evidence; that evidence; the weight
version it was last seen in."""

AT_ONCE = 65_536
"""Rows that are looked at together: intermediate results of a million do not fit the cache."""


@dataclass
class PromptLogits:
    """The table, and which prompts have evidence that is not taken yet."""

    capacity: int
    drift_per_version: float
    states: KeyedStates = field(init=False)
    touched: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)
    """Sorted keys."""

    def __post_init__(self) -> None:
        self.states = KeyedStates(5, self.capacity)

    def believed(
        self, keys: Ints, version: int, level: float, population: Population
    ) -> tuple[Floats, Floats, Bools]:
        """(m,) offset, variance, and whether the prompt was never seen, under weights `version`."""
        rows = self.states.find(keys)
        return *self.believed_at(rows, version, level, population), rows < 0

    def believed_at(
        self, rows: Ints | Rows, version: int, level: float, population: Population
    ) -> tuple[Floats, Floats]:
        """(m,) offset and variance of the prompts in these rows of the table, -1: never seen."""
        if len(rows) > AT_ONCE and 0 < len(self.states) <= 2 * len(rows):
            return self._of_all(rows, version, level, population)
        known = np.flatnonzero(rows >= 0)
        at = rows if len(known) == len(rows) else rows[known]
        # column by column: all in one go take ten times as long; `clip`, since rows are valid
        columns = [column.take(at, mode="clip") for column in self.states.columns]
        offset, variance = self._now(columns, version, level, population)
        if len(known) == len(rows):
            return offset.astype(np.float64), variance.astype(np.float64)
        means = np.full(len(rows), population.mean)
        variances = np.full(len(rows), population.variance)
        means[known], variances[known] = offset, variance
        return means, variances

    def _of_all(
        self, rows: Ints | Rows, version: int, level: float, population: Population
    ) -> tuple[Floats, Floats]:
        """As `believed_at`, for most of the table: computed in its order, then looked up."""
        n = len(self.states)
        believed = np.empty((2, n), dtype=np.float32)
        for first in range(0, n, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, n))
            columns = list(self.states.columns[:, part])
            believed[:, part] = self._now(columns, version, level, population)
        means, variances = (column.take(rows, mode="clip") for column in believed)
        unseen = np.flatnonzero(rows < 0)
        means[unseen], variances[unseen] = population.mean, population.variance
        return means.astype(np.float64), variances.astype(np.float64)

    def _now(
        self, columns: list[Singles], version: int, level: float, population: Population
    ) -> tuple[Singles, Singles]:
        """Offset and variance, from the columns of some rows."""
        offset, variance = columns[OFFSET], columns[VARIANCE]
        untaken = np.flatnonzero(columns[SAMPLES])
        if len(untaken):
            offset, variance = offset.copy(), variance.copy()
            evidence = np.stack([column[untaken] for column in columns])
            offset[untaken], variance[untaken] = _taken(evidence, level)
        return offset, self._aged(variance, columns[LAST], version, population)

    def add(
        self,
        keys: Ints,
        passes: Floats,
        samples: Floats,
        version: Ints,
        population: Population,
    ) -> None:
        """(m,) evidence of the present version; a key may occur several times."""
        key, member = np.unique(keys, return_inverse=True)
        newest = np.zeros(len(key), dtype=np.int64)
        np.maximum.at(newest, member, version)
        new = self.states.find(key) < 0
        values = np.zeros((5, int(new.sum())))
        values[OFFSET], values[VARIANCE] = population.mean, population.variance
        values[LAST] = newest[new]
        self.states.insert(key[new], values)
        rows = self.states.find(key)
        columns = self.states.columns
        fresh = columns[SAMPLES, rows] == 0.0
        aging = rows[fresh]
        columns[VARIANCE, aging] = self._aged(
            columns[VARIANCE, aging], columns[LAST, aging], newest[fresh], population
        )
        columns[LAST, rows] = np.maximum(columns[LAST, rows], newest)
        columns[PASSES, rows] += np.bincount(member, weights=passes)
        columns[SAMPLES, rows] += np.bincount(member, weights=samples)
        self.touched = np.union1d(self.touched, key)
        self.states.evict()

    def close(self, level: float) -> None:
        """The version is over: take its evidence, under the level it turned out to have."""
        rows = self.states.find(self.touched)
        rows = rows[rows >= 0]  # the others were evicted
        columns = self.states.columns
        columns[:2, rows] = _taken(columns[:, rows], level)
        columns[PASSES : SAMPLES + 1, rows] = 0.0
        self.touched = self.touched[:0]

    def forget(self, keep: float, population: Population) -> None:
        """Keep this share of the precision beyond the population's; nothing may be open."""
        columns = self.states.columns[:, : len(self.states)]
        prior = 1.0 / population.variance
        evidence = keep * np.maximum(1.0 / columns[VARIANCE] - prior, 0.0)
        columns[VARIANCE] = 1.0 / (prior + evidence)
        columns[OFFSET] = columns[VARIANCE] * (prior * population.mean + evidence * columns[OFFSET])

    def _aged(
        self, variance: Singles, last: Singles, version: int | Ints, population: Population
    ) -> Singles:
        aged = np.maximum(version - last, np.float32(0.0))
        aged *= np.float32(self.drift_per_version)
        aged += variance
        most = np.maximum(variance, np.float32(population.variance))
        return np.asarray(np.minimum(aged, most, out=aged), dtype=np.float32)


def _taken(states: Singles, level: float) -> tuple[Floats, Floats]:
    states = states.astype(np.float64)  # Newton stops at 1e-6
    mean, variance = posterior(
        states[OFFSET] + level, states[VARIANCE], states[PASSES], states[SAMPLES]
    )
    return mean - level, variance
