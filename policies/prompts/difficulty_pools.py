"""Prompts of middling difficulty more often: prime-rl's difficulty pools.

The mean reward of a prompt's latest group puts it into a pool: hard up to `hard_to`, normal up to
`normal_to`, easy above.  Prompts are drawn with odds by the weight of their pool; those never seen
have weight 1.  The constants are prime-rl's defaults.

prime-rl draws one prompt at a time with replacement.  Here a choice holds a prompt once, and its
probability is min(1, a * weight), exactly (systematic sampling), where a makes the number right.
prime-rl allows a weight of 0; here it does not, since no weight of the trainer makes up for prompts
that are never drawn.  Zero-advantage groups are trained on, or filtered by the trainer.
Correctness class: modified (the distribution of prompts; its weight is 1 / inclusion probability).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, WholeGroups
from steersman.policies.prompts._inclusion import weighted
from steersman.policies.prompts._memory import PromptMemory, one_of_each


@dataclass
class DifficultyPools(WholeGroups):
    """Options as in prime-rl's `difficulty_pool` sampler."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    hard_to: float = 0.25
    """Highest mean reward of a hard prompt."""
    normal_to: float = 0.75
    """Highest mean reward of a normal prompt."""
    hard_weight: float = 0.2
    normal_weight: float = 1.0
    easy_weight: float = 0.2
    """Odds of a prompt of the pool, relative to one never seen."""
    max_prompts: int = 1_000_000
    """Prompts remembered, 24 bytes each; if full, the eighth not updated for longest goes."""

    _memory: PromptMemory = field(init=False)

    def __post_init__(self) -> None:
        if not self.hard_to < self.normal_to:
            raise InvalidInputError(
                f"hard_to {self.hard_to} must be below normal_to {self.normal_to}"
            )
        if min(self.hard_weight, self.normal_weight, self.easy_weight) <= 0:
            raise InvalidInputError("weights of pools must be above 0")
        self._memory = PromptMemory(1, self.max_prompts)

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """Draw by the pools' weights."""
        weight = self.weights(self._memory.read(request.candidates.prompt_key, (np.nan,))[0])
        row, probability = weighted(weight, request.groups_wanted, rng)
        return PromptChoice.of(request, row, probability, "drawn by the weight of its pool")

    def weights(self, mean_reward: Floats) -> Floats:
        """(m,) odds by the latest mean reward; NaN: never seen."""
        hard, normal = mean_reward <= self.hard_to, mean_reward <= self.normal_to
        odds = np.where(normal, self.normal_weight, self.easy_weight)
        odds = np.where(hard, self.hard_weight, odds)
        return np.where(np.isnan(mean_reward), 1.0, odds)

    def learn(self, groups: FinishedGroups) -> None:
        """Remember the mean rewards."""
        for part in one_of_each(groups.prompt_key, groups.rewarded > 0):
            self._memory.write(groups.prompt_key[part], groups.mean_reward[None, part])

    def state_dict(self) -> dict[str, Any]:
        """The latest mean rewards."""
        return self._memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._memory.load_state_dict(state)


PLUGIN: type[PromptPolicy] = DifficultyPools
