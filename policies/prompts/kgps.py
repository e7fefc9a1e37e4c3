"""Prompts of the highest expected gain under a Kalman belief about their pass rate (KGPS).

Kalman-guided prompt selection, arXiv 2607.27610.  The logit of a prompt's pass rate is the state x
of a linear Gaussian model with mean m and variance P.

1. *Prediction*: P grows with every weight version that a request names first, by `noise_per_kl`
   times the KL divergence of the update where it tells that, else by `noise_per_version`; never
   above the prior's.
2. *Correction*: k of n samples passed; with q = (k + 1/2) / (n + 1) the observation is y = logit q
   of variance R = 1 / (n q (1 - q)); gain P / (P + R).
3. *Choice*: the highest E[p (1 - p)] under the belief.  It peaks at one half, and grows with the
   variance of a prompt once found easy or hard, so that such a prompt is visited again in time.

The paper leaves open (or it was not to be found) the noise's factor, the prior and the utility;
they are options, or p (1 - p), the variance of a reward.  `state` = "arcsine" is this project's
alternative: x = arcsin(sqrt(p)), whose observation has the variance 1 / (4 n) whatever p is, and
E[p (1 - p)] = (1 - exp(-8 P) cos 4 m) / 8 in closed form; its prior is the uniform distribution's.

The highest utilities win, ties by lot; the rest has probability 0, which no weight repairs, unless
`uniform_share` of the prompts is drawn from all others (the source has none).
Correctness class: empirical; with a `uniform_share` modified, weight 1 / inclusion probability.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, WholeGroups
from steersman.policies.prompts._inclusion import best, check_share
from steersman.policies.prompts._memory import PromptMemory, check_rewards, one_of_each, passes

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
ARCSINE_OF_UNIFORM = (np.pi / 4, (np.pi**2 - 8) / 16)
"""Mean and variance of arcsin(sqrt(p)) for p uniform on 0..1."""
NO_VERSION = -1


@dataclass
class KalmanGuided(WholeGroups):
    """Options of the belief; see the module's docstring for what the paper leaves open."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL

    state: Literal["logit", "arcsine"] = "logit"
    """What is Gaussian."""
    prior_mean: float = 0.0
    prior_variance: float = 3.0
    """Of the logit of a prompt never seen; 3.3 is the variance of a uniform pass rate's logit."""
    noise_per_version: float = 0.01
    """Variance that a logit gains per weight version whose KL divergence is not told: after 25
    versions as much as one group of 16 at an even pass rate leaves.  An arcsine state gains 1/16 of
    it, as its slope at one half is 1/4."""
    noise_per_kl: float = 10.0
    """Variance of a logit gained per nat of KL divergence; 0.001 nat per step, the usual size, then
    is as `noise_per_version`."""
    uniform_share: float = 0.0
    """Share of the prompts drawn from all others alike."""
    reward_low: float = 0.0
    reward_high: float = 1.0
    """Rewards that count as failed and as passed; one between is a part of a pass."""
    max_prompts: int = 1_000_000
    """Prompts remembered, 40 bytes each; if full, the eighth not updated for longest goes."""

    _memory: PromptMemory = field(init=False)
    """Columns: mean, variance, and the noise's sum when they were written."""
    _noise: float = field(default=0.0, init=False)
    """Sum of the process noise so far."""
    _version: int = field(default=NO_VERSION, init=False)

    def __post_init__(self) -> None:
        check_rewards(self.reward_low, self.reward_high)
        check_share(self.uniform_share)
        if self.prior_variance <= 0 or min(self.noise_per_version, self.noise_per_kl) < 0:
            raise InvalidInputError("prior_variance must be above 0, noise at least 0")
        self._memory = PromptMemory(3, self.max_prompts)

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The highest expected utilities."""
        self._predict(request.weight_version, request.policy_kl)
        mean, variance = self._belief(request.candidates.prompt_key)
        utility = self.utility(mean, variance)
        row, probability = best(utility, request.groups_wanted, self.uniform_share, rng)
        return PromptChoice.of(request, row, probability, "highest expected reward variance")

    def utility(self, mean: Floats, variance: Floats) -> Floats:
        """(m,) E[p (1 - p)] under Gaussian states."""
        if self.state == "arcsine":
            return np.asarray((1.0 - np.exp(-8.0 * variance) * np.cos(4.0 * mean)) / 8.0)
        deviation, total = np.sqrt(variance), np.zeros(len(mean))
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            # p (1 - p) = 1 / (2 + 2 cosh x)
            total += weight / (2.0 + 2.0 * np.cosh(mean + node * deviation))
        return total

    def learn(self, groups: FinishedGroups) -> None:
        """Correct the beliefs."""
        passed, size = passes(groups, self.reward_low, self.reward_high), groups.rewarded
        for part in one_of_each(groups.prompt_key, size > 0):
            key = groups.prompt_key[part]
            mean, variance = self._belief(key)
            seen, noise = self._observation(passed[part], size[part])
            gain = variance / (variance + noise)
            after = (mean + gain * (seen - mean), variance * (1.0 - gain))
            self._memory.write(key, np.stack((*after, np.full(len(key), self._noise))))

    def state_dict(self) -> dict[str, Any]:
        """The beliefs, and how far the weights have moved."""
        return {
            "prompts": self._memory.state_dict(),
            "noise": self._noise,
            "version": self._version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._memory.load_state_dict(state["prompts"])
        self._noise, self._version = float(state["noise"]), int(state["version"])

    @property
    def _prior(self) -> tuple[float, float]:
        if self.state == "arcsine":
            return ARCSINE_OF_UNIFORM
        return self.prior_mean, self.prior_variance

    def _predict(self, version: int, kl: float | None) -> None:
        """The weights have moved on to `version`."""
        moved = max(version - self._version, 0) if self._version != NO_VERSION else 0
        self._version = max(version, self._version)
        each = self.noise_per_version if kl is None else self.noise_per_kl * max(kl, 0.0)
        self._noise += moved * each / (16.0 if self.state == "arcsine" else 1.0)

    def _belief(self, key: Ints) -> tuple[Floats, Floats]:
        mean, variance, then = self._memory.read(key, (*self._prior, self._noise))
        return mean, np.minimum(variance + (self._noise - then), self._prior[1])

    def _observation(self, passed: Floats, size: Ints) -> tuple[Floats, Floats]:
        """(m,) observed states and their variances."""
        share = (passed + 0.5) / (size + 1.0)
        if self.state == "arcsine":
            return np.arcsin(np.sqrt(share)), np.asarray(0.25 / size)
        return np.log(share / (1.0 - share)), 1.0 / (size * share * (1.0 - share))


PLUGIN: type[PromptPolicy] = KalmanGuided
