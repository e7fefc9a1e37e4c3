"""The batch's samples spread over its prompts where they are worth most (Knapsack RL).

arXiv 2509.25849.  The prompts are the data loader's next; the batch has as many samples as the
trainer's configuration gives it, `group_size` per prompt, but n of them go to a prompt whose latest
group passed with rate p such that the sum of

    (1 - p^n - (1 - p)^n) * p (1 - p)^2

is largest: the probability of a gradient times the information gained, an expansion of how far a
step moves the pass rate; it is largest at p = 1/3.  n is between 2 and `most_samples`.

The source fills a dynamic programme's table over the budget.  A prompt's further samples are worth
less and less, p^n (1 - p) + (1 - p)^n p times the gain, so that taking the largest of all those
steps gives the same optimum without the table.

Prompts with p = 0 or 1 have no value: they get 2.  If the others are likely to show both outcomes
with less than the budget (`confidence`; log(1 - confidence) / log(max(p, 1 - p)) samples each),
what is left goes to the unsolved ones in equal parts, which is how the source solves prompts that
never passed; if there is none, to the solved.  Prompts never seen get `group_size`.  Sizes follow
from past groups only, so each prompt's samples are unbiased, but a trainer that averages over
samples weighs a prompt by its size.
Correctness class: modified (the weight is 1 / size for the uniform objective over prompts).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, WholeGroups
from steersman.policies.prompts._inclusion import in_order
from steersman.policies.prompts._memory import PromptMemory, check_rewards, one_of_each, passes


@dataclass
class Knapsack(WholeGroups):
    """Defaults are those of the source's code."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    least_samples: int = 2
    """Of a prompt; fewer cannot differ.  A smaller `group_size` takes its place."""
    most_samples: int = 128
    """Of a prompt; the largest group that the source tried.  A larger `group_size` takes its
    place."""
    confidence: float = 0.9
    """That the samples reserved for a prompt of middling difficulty show both outcomes."""
    reward_low: float = 0.0
    reward_high: float = 1.0
    """Rewards that count as failed and as passed; one between is a part of a pass."""
    max_prompts: int = 1_000_000
    """Prompts remembered, 24 bytes each; if full, the eighth not updated for longest goes."""

    _memory: PromptMemory = field(init=False)

    def __post_init__(self) -> None:
        check_rewards(self.reward_low, self.reward_high)
        if not 1 <= self.least_samples <= self.most_samples:
            raise InvalidInputError("least_samples is at least 1 and at most most_samples")
        if not 0.0 < self.confidence < 1.0:
            raise InvalidInputError(f"confidence is {self.confidence}; between 0 and 1")
        self._memory = PromptMemory(1, self.max_prompts)

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next prompts, each in the size that its latest pass rate is worth."""
        row, share = in_order(len(request.candidates), request.groups_wanted)
        rate = self._memory.read(request.candidates.prompt_key[row], (np.nan,))[0]
        return PromptChoice(
            row=row,
            size=self.sizes(rate, request.group_size),
            max_new_tokens=np.full(len(row), request.max_new_tokens),
            inclusion_probability=share,
            reason="next in the data loader's order, sized by what samples are worth",
        )

    def sizes(self, rate: Floats, group_size: int) -> Ints:
        """(m,) samples for prompts of these latest pass rates; NaN: never seen."""
        least, most = min(self.least_samples, group_size), max(self.most_samples, group_size)
        size = np.where(np.isnan(rate), group_size, least)
        spare = group_size * len(rate) - int(size.sum())
        open_, unsolved = np.flatnonzero((rate > 0) & (rate < 1)), np.flatnonzero(rate == 0)
        idle = unsolved if len(unsolved) else np.flatnonzero(rate == 1)
        likelier = np.maximum(rate[open_], 1.0 - rate[open_])
        needed = np.log(1.0 - self.confidence) / np.log(likelier)
        reserved = int(np.minimum(needed, most).astype(np.int64).sum())
        if len(idle) and reserved < spare:
            spread(size, idle, spare - reserved, most)
            spare = group_size * len(rate) - int(size.sum())
        if len(open_) and spare > 0:
            size[open_] += most_valuable(rate[open_], spare, least, most)
        # where all that is open has reached the most
        spread(size, np.arange(len(size)), group_size * len(rate) - int(size.sum()), most)
        return size

    def learn(self, groups: FinishedGroups) -> None:
        """Remember the pass rates."""
        rewarded = groups.rewarded
        rate = passes(groups, self.reward_low, self.reward_high) / np.maximum(rewarded, 1)
        for part in one_of_each(groups.prompt_key, rewarded > 0):
            self._memory.write(groups.prompt_key[part], rate[None, part])

    def state_dict(self) -> dict[str, Any]:
        """The latest pass rates."""
        return self._memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._memory.load_state_dict(state)


def most_valuable(rate: Floats, count: int, least: int, most: int) -> Ints:
    """(m,) how many of `count` samples more than `least` each prompt gets, up to `most`."""
    have = np.arange(least, most)
    if count >= len(rate) * len(have):
        return np.full(len(rate), len(have))
    p = rate[:, None]
    step = (p**have * (1.0 - p) + (1.0 - p) ** have * p) * p * (1.0 - p) ** 2
    taken = np.argpartition(-step.ravel(), count - 1)[:count] if len(have) else have
    return np.bincount(taken // max(len(have), 1), minlength=len(rate))


def spread(size: Ints, row: Ints, count: int, most: int) -> None:
    """Add `count` samples to the rows in equal parts, in place, up to `most` each."""
    row = row[size[row] < most]
    while count > 0 and len(row):
        part = count // len(row) + (np.arange(len(row)) < count % len(row))
        before = size[row]
        size[row] = np.minimum(before + part, most)
        count -= int((size[row] - before).sum())
        row = row[size[row] < most]


PLUGIN: type[PromptPolicy] = Knapsack
