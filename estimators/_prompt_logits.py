"""What is believed of every prompt's logit, relative to the level common to all of them.

Evidence of the present weight version is only summed (so that it does not matter in which parts it
comes) and taken when the version is over, or whenever somebody asks.
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._population import Population
from steersman.estimators._states import KeyedStates
from steersman.estimators.logistic import posterior
from steersman.estimators.observation import Bools, Floats, Ints

OFFSET, VARIANCE, PASSES, SAMPLES, LAST = range(5)
"""Rows of the table: belief before the present version's evidence; that evidence; the weight
version it was last seen in."""


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
        known = np.flatnonzero(rows >= 0)
        now = self.states.columns[:, rows[known]]
        untaken = np.flatnonzero(now[SAMPLES] > 0.0)
        if len(untaken):
            now[:2, untaken] = _taken(now[:, untaken], level)
        offset = np.full(len(keys), population.mean)
        variance = np.full(len(keys), population.variance)
        offset[known], variance[known] = now[OFFSET], self._aged(now, version, population)
        return offset, variance, rows < 0

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
        columns[VARIANCE, aging] = self._aged(columns[:, aging], newest[fresh], population)
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

    def _aged(self, states: Floats, version: int | Ints, population: Population) -> Floats:
        age = np.maximum(version - states[LAST], 0.0)
        most = np.maximum(states[VARIANCE], population.variance)
        return np.asarray(np.minimum(states[VARIANCE] + self.drift_per_version * age, most))


def _taken(states: Floats, level: float) -> tuple[Floats, Floats]:
    mean, variance = posterior(
        states[OFFSET] + level, states[VARIANCE], states[PASSES], states[SAMPLES]
    )
    return mean - level, variance
