"""Skips prompts in proportion to how often in a row they taught nothing (GRESO).

Selective rollouts, arXiv 2506.02177; constants from the code, Infini-AI-Lab/GRESO.

1. A prompt's trace z counts the groups since the last whose rewards were not all equal.  Candidates
   are met in the data loader's order and each is kept with probability max(p^z, `least_keep`), p
   being `p_easy` or `p_hard` by whether its last group passed or failed.  The paper prints the
   chance of the opposite, 1 - p^z.  Prompts skipped get another coin if the candidates run out.
2. Once per step p_easy goes down by `adjustment` if the share of groups that were all right was
   above its target (1/3 of `zero_variance_target`), else up; p_hard likewise with the other 2/3.
3. Groups that teach nothing do not count towards the batch; as long as it lacks w of its B groups,
   min(`oversampling` * B, `margin` * w / (1 - share of such groups)) prompts are rolled out, at
   least `least_share` * B.  Groups beyond the batch are left out, in the data loader's order.

Differences: the code calls a group of 8 easy from a mean reward of 0.98 and hard up to 0.11, which
for other sizes is not the same as all rewards being equal; here that is asked, and `pass_reward`
tells the sides.  It applies no weight; here each prompt comes with its exact inclusion probability.
Contested: that prompts stay uninformative (above 90 % in the paper, 53 % on a frozen 0.5B model),
and at equal rollouts the rule has lost to plain GRPO and to KGPS.
Correctness class: modified (weight 1 / inclusion probability; groups left out have no gradient).
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import (
    FinishedGroups,
    PromptChoice,
    PromptRequest,
    Selection,
    WholeGroups,
)
from steersman.policies.prompts._inclusion import kept
from steersman.policies.prompts._memory import PromptMemory, one_of_each

NO_STEP = -1


@dataclass
class Greso(WholeGroups):
    """Defaults are those of the source's code."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    first_p_easy: float = 0.5
    first_p_hard: float = 0.5
    """Keep probability after one group that taught nothing, before any adjustment."""
    adjustment: float = 0.01
    """Change of p_easy and p_hard per step; they stay between `p_low` and `p_high`."""
    p_low: float = 0.05
    p_high: float = 0.95
    least_keep: float = 0.01
    """So that no weight exceeds its inverse, and no prompt is skipped for ever."""
    zero_variance_target: float = 0.25
    """Share of groups that teach nothing which is aimed at."""
    easy_part: float = 1 / 3
    """Of the target; the rest are hard ones."""
    oversampling: float = 1.5
    """Prompts rolled out at first per group of the batch (the code: 384 for 256)."""
    margin: float = 1.25
    """Prompts rolled out per prompt that the share of useless groups makes necessary."""
    least_share: float = 0.25
    """Of the batch that is rolled out at least (the code: 64 of 256)."""
    pass_reward: float = 0.5
    """Mean reward above which a group whose rewards are all equal counts as easy."""
    max_prompts: int = 1_000_000
    """Prompts remembered, 32 bytes each; if full, the eighth not updated for longest goes."""

    _memory: PromptMemory = field(init=False)
    """Columns: z, and 1 if the last group that taught nothing was easy."""
    _p: list[float] = field(init=False)
    """[p_easy, p_hard]"""
    _step: int = field(default=NO_STEP, init=False)
    _batch: int = field(default=0, init=False)
    """Groups of the step's batch."""
    _lacking: int = field(default=0, init=False)
    """Groups that it still lacks."""
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0], init=False)
    """Groups seen since the last adjustment: all, all passed, all failed."""
    _useless_share: float = field(default=1.0, init=False)
    """Of the groups seen last; 1 before any, so that the first choice is the full one."""

    def __post_init__(self) -> None:
        if not 0.0 < self.least_keep <= 1.0:
            raise InvalidInputError(f"least_keep is {self.least_keep}; above 0, at most 1")
        if not 0.0 <= self.p_low <= self.p_high <= 1.0:
            raise InvalidInputError("p_low and p_high: 0 <= p_low <= p_high <= 1")
        self._memory = PromptMemory(2, self.max_prompts)
        self._p = [self.first_p_easy, self.first_p_hard]

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next ones that are kept."""
        if request.step != self._step:
            self._begin(request)
        self._lacking = request.groups_wanted
        trace, easy = self._memory.read(request.candidates.prompt_key, (0.0, 0.0))
        count = self._prompts_for(request.groups_wanted)
        row, probability = kept(self.keep_probability(trace, easy), count, rng)
        return PromptChoice.of(request, row, probability, "kept by its record")

    def keep_probability(self, trace: Floats, easy: Floats) -> Floats:
        """(m,) after `trace` groups in a row that taught nothing."""
        p = np.where(easy > 0, self._p[0], self._p[1])
        return np.maximum(p**trace, self.least_keep)

    def learn(self, groups: FinishedGroups) -> None:
        """Lengthen or end the traces."""
        known = groups.rewarded > 0
        if not known.any():
            return
        useless, easy = known & ~groups.informative, groups.mean_reward > self.pass_reward
        for part in one_of_each(groups.prompt_key, known):
            key = groups.prompt_key[part]
            trace = np.where(useless[part], self._memory.read(key, (0.0, 0.0))[0] + 1, 0)
            self._memory.write(key, np.stack((trace, easy[part])))
        seen = (int(known.sum()), int((useless & easy).sum()), int((useless & ~easy).sum()))
        self._counts = [a + b for a, b in zip(self._counts, seen, strict=True)]
        self._useless_share = (seen[1] + seen[2]) / seen[0]

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """The first groups that teach something, as many as lack."""
        accepted = groups.informative
        accepted &= np.cumsum(accepted) <= self._lacking
        self._lacking -= int(accepted.sum())
        return Selection(accepted, accepted[groups.group_row], correctness=self.correctness)

    def state_dict(self) -> dict[str, Any]:
        """Traces, keep probabilities, and where the step stands."""
        return {
            "prompts": self._memory.state_dict(),
            "p": list(self._p),
            "step": self._step,
            "batch": self._batch,
            "lacking": self._lacking,
            "counts": list(self._counts),
            "useless_share": self._useless_share,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._memory.load_state_dict(state["prompts"])
        self._p = [float(p) for p in state["p"]]
        self._step, self._batch = int(state["step"]), int(state["batch"])
        self._lacking = int(state["lacking"])
        self._counts = [int(n) for n in state["counts"]]
        self._useless_share = float(state["useless_share"])

    def _begin(self, request: PromptRequest) -> None:
        """A new step: adjust p_easy and p_hard by what the last one brought."""
        self._step, self._batch = request.step, request.groups_wanted
        seen, *useless = self._counts
        if not seen:
            return
        targets = (self.easy_part, 1.0 - self.easy_part)
        for side, (count, part) in enumerate(zip(useless, targets, strict=True)):
            too_many = count / seen > part * self.zero_variance_target
            moved = self._p[side] + (-self.adjustment if too_many else self.adjustment)
            self._p[side] = min(max(moved, self.p_low), self.p_high)
        self._counts = [0, 0, 0]

    def _prompts_for(self, groups: int) -> int:
        batch, useful = max(self._batch, groups), 1.0 - self._useless_share
        most = self.oversampling * batch
        count = min(most, self.margin * groups / useful) if useful > 0 else most
        return math.ceil(max(count, self.least_share * batch))


PLUGIN: type[PromptPolicy] = Greso
