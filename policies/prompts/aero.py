"""Explore with a few samples, rescue prompts that never pass, reject surplus failures: AERO.

1. *Explore*: every prompt gets `explore_share` of the trainer's group size.
2. *Rescue*: where none passes, `extra` samples are added again and again, until the first passes or
   the prompt has had its budget.
3. *Middle* (some pass, expected rate below `easy_from`): the group gets its full size.  *Easy*: it
   stays as small as it is.
4. *Reject*: of a group that is not easy all c passing samples are trained on, and of the failing
   ones k * c at most, drawn at random.  In an easy group the failing ones are few anyway.

The expected rate is the mean of a Beta posterior.  The paper takes it for the group's baseline too,
so that a group whose samples all agree keeps an advantage that is not zero; a trainer that does so
asks `baseline`, one that does not may have such groups dropped.

Source: AERO (arXiv 2602.14338).  Its prior, its k and the sizes of its stages are not known here:
they are options.  Saying "45 % fewer steps" of it is wrong: it is wall-clock time per step.

Correctness class: empirical.  Rejection by the outcome and stopping at the first success bias the
group's statistics.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Bools, Floats, Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection
from steersman.policies.prompts._rounds import in_order


@dataclass
class Aero:
    """The rule of the module's docstring."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL

    explore_share: float = 0.5
    """Of the trainer's group size, at least 2 samples; open, as the docstring says."""
    extra: int = 2
    """Samples of one rescue, as in the paper."""
    budget: float = 1.0
    """Most samples of a prompt, over the trainer's group size; open."""
    easy_from: float = 0.5
    """Expected pass rate from which a prompt is easy, as in the paper."""
    failures_per_pass: float = 1.0
    """k; open.  1 balances the two."""
    prior_passes: float = 1.0
    """Of the Beta prior; open, so is the next.  1 and 1 are the uniform prior."""
    prior_failures: float = 1.0
    train_degenerate: bool = True
    """Groups whose samples all agree count towards the batch: right for a trainer that takes its
    baselines from here, and for one that never refills."""
    pass_above: float = 0.5
    """A sample passes if its reward is above."""

    _group_size: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        valid = {
            "explore_share": 0.0 < self.explore_share <= 1.0,
            "extra": self.extra >= 1,
            "budget": self.budget >= 1.0,
            "easy_from": 0.0 < self.easy_from <= 1.0,
            "failures_per_pass": self.failures_per_pass > 0.0,
            "prior_passes": self.prior_passes > 0.0,
            "prior_failures": self.prior_failures > 0.0,
        }
        for name, good in valid.items():
            if not good:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, which is out of range")

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next ones, with the samples of the first stage."""
        self._group_size = request.group_size
        size = self._explored
        return in_order(request, request.groups_wanted, size, f"exploring with {size} samples")

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """Rescues, and the rest of a middle group."""
        size, passes = groups.size, self._passes(groups)
        left = np.maximum(round(self.budget * self._group_size) - size, 0)
        middle = (passes > 0) & (size <= self._explored) & ~self._easy(passes, groups.rewarded)
        rest = np.where(middle, np.maximum(self._group_size - size, 0), 0)
        return np.where(passes == 0, np.minimum(self.extra, left), rest)

    def learn(self, groups: FinishedGroups) -> None:
        """Nothing."""

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """Groups with what is left of their failing samples."""
        accepted = np.ones(len(groups), np.bool_)
        if not self.train_degenerate:
            accepted = groups.informative
        train = accepted[groups.group_row] & ~self._rejected(groups, rng)
        return Selection(accepted, train, correctness=self.correctness)

    def baseline(self, groups: FinishedGroups) -> Floats:
        """(m,) expected pass rate of each group: what its rewards are compared to."""
        return self._rate(self._passes(groups), groups.rewarded)

    def state_dict(self) -> dict[str, Any]:
        """The trainer's group size."""
        return {"group_size": self._group_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace it."""
        self._group_size = int(state["group_size"])

    @property
    def _explored(self) -> int:
        return min(max(round(self.explore_share * self._group_size), 2), self._group_size)

    def _passes(self, groups: FinishedGroups) -> Ints:
        passing = groups.group_row[groups.reward > self.pass_above]
        return np.bincount(passing, minlength=len(groups)).astype(np.int64)

    def _rate(self, passes: Ints, size: Ints) -> Floats:
        prior = self.prior_passes + self.prior_failures
        return np.asarray((passes + self.prior_passes) / (size + prior))

    def _easy(self, passes: Ints, size: Ints) -> Bools:
        return np.asarray(self._rate(passes, size) >= self.easy_from)

    def _rejected(self, groups: FinishedGroups, rng: np.random.Generator) -> Bools:
        """(n,) failing samples beyond k per passing one, of groups that are not easy."""
        passes = self._passes(groups)
        limited = (passes > 0) & ~self._easy(passes, groups.rewarded)
        failing = np.flatnonzero((groups.reward <= self.pass_above) & limited[groups.group_row])
        order = failing[np.lexsort((rng.random(len(failing)), groups.group_row[failing]))]
        group = groups.group_row[order]
        first = np.searchsorted(group, group)  # of its group's failing samples
        most = np.maximum(np.floor(self.failures_per_pass * passes), 1.0)
        rejected = np.zeros(len(groups.group_row), np.bool_)
        rejected[order[np.arange(len(order)) - first >= most[group]]] = True
        return rejected


PLUGIN: type[PromptPolicy] = Aero
