"""Pass rate of prompts: a Gaussian logit per prompt that grows uncertain as the weights move on.

The logit of a prompt is `offset + level`: the level g is common to all prompts (`_common_level`),
the offset is the prompt's own, N(m, v).

1. *Staleness*: v grows by `drift_per_version` per weight version since the prompt was last seen,
   until it is as wide as the population.  Weights that stand still age nothing.
2. *Learning*: k of n samples pass; m and v become the moments of the exact posterior (`logistic`).
   Within one weight version the evidence of a prompt is summed and taken at once, whatever parts it
   came in.  Approximation: evidence of an older version that arrives late counts as the present
   version's, and from one version to the next the posterior is taken for Gaussian.
3. *Level*: when a version is over, g moves by what the known prompts' groups showed; that version's
   evidence is then explained by the new g first, and by the prompts' offsets after it.
4. *Unseen prompts* are drawn from the population of those seen before (`_population`).

A group of n is degenerate with probability E[p^n + (1-p)^n].  Given k passes among r known rewards
it stays degenerate only if k is 0 or r, with probability E[(1-p)^(n-r)] or E[p^(n-r)] under the
posterior.  If the trainer does not normalise by the deviation, the group's value is the expected
variance of its rewards over its maximum, 4 E[K (n-K)] / n^2 with K = k + Binomial(n-r, p); before
any reward that is 4 E[p(1-p)] (n-1)/n.

Rewards are scaled to 0..1 and clipped; fractional ones count as fractional passes.  For those it
overstates the noise, and it takes a group whose rewards so far all equal one fraction for one that
will not stay so.  Groups of one sample do not tell how much prompts differ, so that the population
stays as wide as it was assumed.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

import numpy as np

from steersman.estimators._common_level import CommonLevel
from steersman.estimators._open_groups import OpenGroups
from steersman.estimators._population import Population
from steersman.estimators._prompt_logits import PromptLogits
from steersman.estimators._reliability import Reliability
from steersman.estimators._states import Rows
from steersman.estimators.contract import State, SuccessEstimator
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import SuccessForecast
from steersman.estimators.logistic import Logits, given
from steersman.estimators.observation import (
    NO_VERSION,
    Bools,
    Floats,
    Ints,
    Normaliser,
    Observation,
)

SMALLEST_SPREAD = 1e-6
"""Variance of k below which a group counts as certain: dividing by less overflows."""


@dataclass
class DynamicLogistic:
    """The estimator of the module's docstring."""

    reward_low: float = 0.0
    reward_high: float = 1.0
    """Rewards that count as failed and as passed."""
    drift_per_version: float = 0.006
    """Variance of a logit that a prompt gains per weight version; a larger one revisits sooner."""
    max_prompts: int = 1_000_000
    """Prompts remembered, 32 to 36 bytes each; if full, the eighth unseen longest goes."""

    _prompts: PromptLogits = field(init=False)
    _groups: OpenGroups = field(default_factory=OpenGroups, init=False)
    _level: CommonLevel = field(default_factory=CommonLevel, init=False)
    _population: Population = field(default_factory=Population, init=False)
    _reliability: Reliability = field(default_factory=Reliability, init=False)
    _version: int = field(default=0, init=False)
    _surprises: Floats = field(default_factory=lambda: np.zeros(0), init=False)

    def __post_init__(self) -> None:
        if not self.reward_low < self.reward_high:
            raise InvalidInputError(
                f"reward_low {self.reward_low} must be below reward_high {self.reward_high}"
            )
        if self.max_prompts < 1:
            raise InvalidInputError(f"max_prompts is {self.max_prompts}; at least 1")
        if self.drift_per_version < 0.0:
            raise InvalidInputError(f"drift_per_version is {self.drift_per_version}; at least 0")
        self._prompts = PromptLogits(self.max_prompts, self.drift_per_version)

    @property
    def common_level(self) -> float:
        """How far the logits of all prompts have moved together since the first weight version."""
        return self._level.next

    def observe(self, observation: Observation) -> None:
        """Learn the rewards that became known; the groups they complete move level and prior."""
        self._advance(observation.trainer.weight_version)
        self._surprises = np.zeros(0)
        table = observation.rewarded
        usable = np.isfinite(table.reward)
        if not usable.any():
            return
        ids, keys = table.group_id[usable], table.prompt_key[usable]
        written = table.weight_version[usable]
        version = np.where(written == NO_VERSION, self._version, written)
        reward = self._scaled(table.reward[usable])
        group, first, member = np.unique(ids, return_index=True, return_inverse=True)
        new = self._groups.find(group) < 0
        self._groups.begin(group[new], *self._believed(keys[first[new]], self._version))
        self._prompts.add(keys, reward, np.ones(len(keys)), version, self._population)
        at = self._groups.find(group)
        held = at >= 0
        self._groups.add(at[member][held[member]], reward[held[member]])
        size = table.group_size[usable][first]
        complete = held & (self._groups.columns[4, at] >= size)
        self._finish(self._groups.take(at[complete]))

    def learn(self, keys: Ints, passes: Floats, samples: Ints, step: int) -> None:
        """(m,) whole groups of prompts `keys`, `passes` of `samples` passed, under weights `step`.

        For those who have no observations (a prompt sampler); steps must not go back.
        """
        self._advance(step)
        k, n = np.asarray(passes, dtype=np.float64), np.asarray(samples, dtype=np.float64)
        offset, variance, unknown = self._believed(keys, step)
        self._prompts.add(keys, k, n, np.full(len(keys), step), self._population)
        low, high = np.where(k < n, 0.0, 1.0), np.where(k > 0.0, 1.0, 0.0)
        self._finish(np.stack((offset, variance, unknown.astype(np.float64), k, n, low, high)))

    def predict(self, keys: Ints, step: int) -> tuple[Floats, Floats]:
        """(m,) mean and variance of the prompts' logits under weights `step`."""
        offset, variance, _ = self._believed(keys, step)
        return offset + self._level_at(step), variance

    def rows_of(self, keys: Ints) -> Ints:
        """(m,) rows of the prompts in the table, -1: never seen; as long as `rows_moved` stays."""
        return self._prompts.states.find(keys)

    @property
    def rows_moved(self) -> int:
        """Times that all prompts got other rows."""
        return self._prompts.states.replaced

    def predict_rows(self, rows: Ints | Rows, step: int) -> tuple[Floats, Floats]:
        """As `predict`, for prompts whose rows are known: looking up a million takes 0.2 s."""
        level = self._level_at(step)
        offset, variance = self._prompts.believed_at(rows, step, level, self._population)
        return offset + level, variance

    @property
    def nbytes(self) -> int:
        """Memory of what is remembered of prompts."""
        return self._prompts.states.nbytes

    def forecast(self, observation: Observation) -> SuccessForecast:
        """Per group: pass probability, and the worth of finishing it given its rewards so far."""
        g, version = observation.groups, observation.trainer.weight_version
        offset, variance = self._before_group(g.group_id, g.prompt_key, version)
        mean = offset + self._level_at(version)
        size = np.maximum(g.size, 1).astype(np.float64)
        before = Logits.gaussian(mean, variance)
        all_pass, all_fail = before.all_pass(size), before.all_fail(size)
        degenerate = all_pass + all_fail
        p, deviation = before.pass_moments()
        known = np.minimum(g.rewarded.astype(np.float64), size)
        passes = np.clip(self._scaled_sum(g.reward_sum, known), 0.0, known)
        some = np.flatnonzero(known > 0.0)
        if len(some):
            after, _ = given(mean[some], variance[some], passes[some], known[some])
            p[some], deviation[some] = after.pass_moments()
            left = (size - known)[some]
            all_pass[some] = after.all_pass(left) * (self._scaled(g.reward_low[some]) >= 1.0)
            all_fail[some] = after.all_fail(left) * (self._scaled(g.reward_high[some]) <= 0.0)
        informative = np.clip(1.0 - all_pass - all_fail, 0.0, 1.0)
        settled = (known >= size) & (g.reward_high <= g.reward_low)
        informative = np.where(g.reward_high > g.reward_low, 1.0, np.where(settled, 0, informative))
        value = informative
        if observation.trainer.normaliser is Normaliser.NONE:
            value = _expected_variance(p, deviation, passes, known, size)
        return SuccessForecast(
            p, np.sqrt(deviation), np.clip(degenerate, 0.0, 1.0), informative, value
        )

    def surprises(self) -> Floats:
        """(m,) (k - n E p) / sqrt(R) of the groups the last `observe` or `learn` completed."""
        return self._surprises

    def health(self) -> Mapping[str, float]:
        """`brier`, `degenerate_ece` and `degenerate_auc` of the forecasts before each group."""
        return self._reliability.figures()

    def reset_on_drift(self, keep: float) -> None:
        """Every prompt keeps this share of what is known of it beyond the population.

        With keep = 0 all prompts are unseen again; the population itself stays, at less weight.
        """
        if keep >= 1.0:
            return
        self._close_version()
        self._prompts.forget(keep, self._population)
        self._population.weight *= keep

    def state_dict(self) -> State:
        """Prompts, open groups, level and population, and its own record."""
        keys, columns = self._prompts.states.dump()
        return {
            "version": self._version,
            "level": list(astuple(self._level)),
            "population": list(astuple(self._population)),
            "prompt_keys": keys.tolist(),
            "prompts": columns.tolist(),
            "touched": self._prompts.touched.tolist(),
            "group_ids": self._groups.ids.tolist(),
            # a group that is open has a reward, so that its bounds are finite
            "groups": self._groups.columns.tolist(),
            "reliability": [self._reliability.bins.tolist(), self._reliability.errors.tolist()],
            "surprises": self._surprises.tolist(),
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self._version = int(state["version"])
        self._level = CommonLevel(*state["level"])
        self._population = Population(*state["population"])
        keys = np.array(state["prompt_keys"], dtype=np.int64)
        self._prompts.states.load(keys, np.array(state["prompts"], dtype=np.float64).reshape(5, -1))
        self._prompts.touched = np.array(state["touched"], dtype=np.int64)
        groups = np.array(state["groups"], dtype=np.float64).reshape(OpenGroups.FIELDS, -1)
        self._groups = OpenGroups(np.array(state["group_ids"], dtype=np.int64), groups)
        bins, errors = state["reliability"]
        self._reliability = Reliability(np.array(bins), np.array(errors))
        self._surprises = np.array(state["surprises"], dtype=np.float64)

    def _scaled(self, reward: Floats) -> Floats:
        return np.clip((reward - self.reward_low) / (self.reward_high - self.reward_low), 0.0, 1.0)

    def _scaled_sum(self, reward_sum: Floats, count: Floats) -> Floats:
        width = self.reward_high - self.reward_low
        return np.asarray((reward_sum - self.reward_low * count) / width)

    def _level_at(self, version: int) -> float:
        return self._level.next if version > self._version else self._level.level

    def _advance(self, version: int) -> None:
        if version > self._version:
            self._close_version()
            self._version = version

    def _close_version(self) -> None:
        self._level.advance()
        self._prompts.close(self._level.level)

    def _believed(self, keys: Ints, version: int) -> tuple[Floats, Floats, Bools]:
        level, population = self._level_at(version), self._population
        return self._prompts.believed(keys, version, level, population)

    def _before_group(self, groups: Ints, keys: Ints, version: int) -> tuple[Floats, Floats]:
        """(g,) offset and variance of the groups' prompts before their own rewards."""
        at = self._groups.find(groups)
        begun = at >= 0
        offset, variance = np.empty(len(groups)), np.empty(len(groups))
        offset[begun], variance[begun] = self._groups.columns[:2, at[begun]]
        offset[~begun], variance[~begun], _ = self._believed(keys[~begun], version)
        return offset, variance

    def _finish(self, groups: Floats) -> None:
        """Learn from complete groups, given as columns of `OpenGroups`."""
        offset, variance, unknown, k, n, low, high = groups
        logits = Logits.gaussian(offset + self._level.level, variance)
        p, uncertain = logits.pass_moments()
        slope = n * (p * (1.0 - p) - uncertain)
        spread = np.maximum(slope + n * n * uncertain, SMALLEST_SPREAD)
        excess = k - n * p
        self._surprises = excess / np.sqrt(spread)
        degenerate = logits.all_pass(n) + logits.all_fail(n)
        error = k * (1.0 - p) ** 2 + (n - k) * p**2
        self._reliability.add(np.clip(degenerate, 0.0, 1.0), high <= low, n, error)
        known = unknown == 0.0
        self._level.add(slope[known], excess[known], spread[known])
        self._population.add(k[~known], n[~known], self._level.level)


def _expected_variance(
    p: Floats, variance: Floats, passes: Floats, known: Floats, size: Floats
) -> Floats:
    """(g,) 4 E[K (n-K)] / n^2, K = passes + Binomial(n - known, p), of E p and Var p."""
    left = size - known
    mean = passes + left * p
    square = mean**2 + left**2 * variance + left * (p * (1.0 - p) - variance)
    return np.asarray(np.clip(4.0 * (size * mean - square) / size**2, 0.0, 1.0))


PLUGIN: type[SuccessEstimator] = DynamicLogistic
