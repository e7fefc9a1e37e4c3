"""Prompts whose pass rate, drawn from a Beta posterior, comes closest to one half (MoPPS).

Model predictive prompt selection, arXiv 2507.04632, rule as in thu-rllab/MoPPS.  A prompt's pass
rate is Beta(a, b); after s of n samples passed

    a = memory * a + (1 - memory) * prior_pass + s
    b = memory * b + (1 - memory) * prior_fail + n - s.

Each choice draws a pass rate of every candidate (Thompson sampling) and takes those nearest to
`target`.  The posterior of a prompt that is not visited does not widen; it is only at its next
visit that what was known counts for less.

Inclusion probability: given the other candidates' draws, that a draw of this one comes as near as
it has to, P(|p - target| < d) = F(target + d) - F(target - d) with F the Beta distribution function
and d the distance of the next in line.  Its inverse is the exact weight (`_inclusion`), but a
prompt that was drawn against long odds weighs much: `uniform_share` bounds that (the source has
none).

Known slip of the source: with one sample per prompt an operator-precedence error in its code
miscounts the failures; not reproduced.
Correctness class: modified (the distribution of prompts; its weight is 1 / inclusion probability).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, WholeGroups
from steersman.policies.prompts._inclusion import check_share, smallest
from steersman.policies.prompts._memory import PromptMemory, check_rewards, one_of_each, passes


@dataclass
class MoPPS(WholeGroups):
    """Defaults are those of the source's scripts."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    target: float = 0.5
    """Pass rate that is looked for: where the rewards of a group vary most."""
    memory: float = 0.5
    """Share of the past evidence that is kept at each visit; 1: all, for weights that stand
    still."""
    prior_pass: float = 1.0
    prior_fail: float = 1.0
    """Beta distribution of a prompt never seen; 1 and 1: uniform."""
    uniform_share: float = 0.0
    """Share of the prompts drawn from all others alike; no weight exceeds (candidates /
    prompts wanted) / uniform_share then."""
    reward_low: float = 0.0
    reward_high: float = 1.0
    """Rewards that count as failed and as passed; one between is a part of a pass."""
    max_prompts: int = 1_000_000
    """Prompts remembered, 32 bytes each; if full, the eighth not updated for longest goes."""

    _memory: PromptMemory = field(init=False)

    def __post_init__(self) -> None:
        check_rewards(self.reward_low, self.reward_high)
        check_share(self.uniform_share)
        if not (0.0 <= self.memory <= 1.0 and 0.0 < self.target < 1.0):
            raise InvalidInputError("memory is a share, and target lies between 0 and 1")
        if min(self.prior_pass, self.prior_fail) <= 0.0:
            raise InvalidInputError("prior_pass and prior_fail must be above 0")
        self._memory = PromptMemory(2, self.max_prompts)

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The candidates whose drawn pass rates are nearest to the target."""
        passed, failed = self._memory.read(request.candidates.prompt_key, self._prior)
        distance = np.abs(rng.beta(passed, failed) - self.target)

        def nearer(row: Ints, than: Floats) -> Floats:
            from scipy.special import betainc  # here: costs an import of 0.1 s

            a, b = passed[row], failed[row]
            high = betainc(a, b, np.clip(self.target + than, 0.0, 1.0))
            return np.asarray(high - betainc(a, b, np.clip(self.target - than, 0.0, 1.0)))

        row, probability = smallest(
            distance, nearer, request.groups_wanted, self.uniform_share, rng
        )
        return PromptChoice.of(request, row, probability, "its drawn pass rate is near the target")

    def learn(self, groups: FinishedGroups) -> None:
        """Forget a part, add the outcomes."""
        passed = passes(groups, self.reward_low, self.reward_high)
        failed = groups.rewarded - passed
        prior = np.array(self._prior)[:, None]
        for part in one_of_each(groups.prompt_key, groups.rewarded > 0):
            key = groups.prompt_key[part]
            seen = np.stack((passed[part], failed[part]))
            before = self._memory.read(key, self._prior)
            self._memory.write(key, self.memory * before + (1.0 - self.memory) * prior + seen)

    def state_dict(self) -> dict[str, Any]:
        """The posteriors."""
        return self._memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._memory.load_state_dict(state)

    @property
    def _prior(self) -> tuple[float, float]:
        return self.prior_pass, self.prior_fail


PLUGIN: type[PromptPolicy] = MoPPS
