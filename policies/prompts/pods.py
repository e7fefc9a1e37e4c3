"""Train on the samples of a group whose rewards vary most, and leave the others out: PODS.

Of n samples sorted by reward the m with the largest variance are always the k highest and the m - k
lowest, for some k; prefix sums of the rewards and of their squares give all m + 1 variances in one
scan, O(n log n) with the sort.  Equal rewards are told apart at random.

Source: PODS (arXiv 2504.13818), where n is 64 and m is 16.  It saves the trainer's time only: the
samples left out are written all the same, so that a run which waits for its rollouts gains nothing
unless the trainer's GPUs take over a part of them.

Correctness class: empirical.  The group's advantages are those of a chosen sample.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Bools, Floats, Ints
from steersman.policies.contract import PromptPolicy, Stateless
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection
from steersman.policies.prompts._rounds import in_order


def widest(reward: Floats, keep: int) -> Ints:
    """(g, keep) columns of each row of (g, n) rewards whose variance is the largest."""
    n = reward.shape[1]
    order = np.argsort(reward, axis=1, kind="stable")
    value = np.take_along_axis(reward, order, axis=1)
    value = value - value.mean(axis=1, keepdims=True)  # squares of large numbers lose digits
    nothing = np.zeros((len(reward), 1))
    total = np.concatenate((nothing, value.cumsum(axis=1)), axis=1)
    square = np.concatenate((nothing, (value * value).cumsum(axis=1)), axis=1)
    low = np.arange(keep + 1)  # taken from below; the others from above
    high = n - keep + low

    def taken(sums: Floats) -> Floats:
        return np.asarray(sums[:, low] + sums[:, [n]] - sums[:, high])

    variance = taken(square) - taken(total) ** 2 / keep
    best = variance.argmax(axis=1)[:, None]
    column = np.arange(keep)
    place = np.where(column < best, column, column + n - keep)
    return np.take_along_axis(order, place, axis=1)


@dataclass
class Pods(Stateless):
    """The rule of the module's docstring."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL

    train_share: float = 0.25
    """Of a group's samples that are trained on, at least 2: the paper's 16 of 64.  The trainer's
    group size is what is generated."""

    def __post_init__(self) -> None:
        if not 0.0 < self.train_share <= 1.0:
            raise InvalidInputError(f"train_share is {self.train_share}; valid: above 0, at most 1")

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next ones, as the trainer does by default."""
        reason = f"{self._kept(request.group_size)} of {request.group_size} are trained on"
        return in_order(request, request.groups_wanted, request.group_size, reason)

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """None gets more samples."""
        return np.zeros(len(groups), dtype=np.int64)

    def learn(self, groups: FinishedGroups) -> None:
        """Nothing."""

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """Every group, with its share of the samples."""
        return Selection(
            np.ones(len(groups), np.bool_), self._train(groups, rng), correctness=self.correctness
        )

    def _kept(self, size: int) -> int:
        return min(max(round(self.train_share * size), 2), size)

    def _train(self, groups: FinishedGroups, rng: np.random.Generator) -> Bools:
        train = np.zeros(len(groups.group_row), np.bool_)
        sizes = groups.size
        # a reward that is not known must not look like an extreme one
        known, usual = np.isfinite(groups.reward), np.nan_to_num(groups.mean_reward)
        reward = np.where(known, groups.reward, usual[groups.group_row])
        # samples in a random order within their groups, so that ties fall at random
        shuffled = np.lexsort((rng.random(len(train)), groups.group_row))
        for size in np.unique(sizes[sizes > 0]).tolist():
            rows = shuffled[sizes[groups.group_row] == size].reshape(-1, size)
            chosen = widest(reward[rows], self._kept(size))
            train[np.take_along_axis(rows, chosen, axis=1)] = True
        return train


PLUGIN: type[PromptPolicy] = Pods
