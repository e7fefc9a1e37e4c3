"""A token cap below the trainer's: growing with the step (POPD), or a fixed share of it (TOPD).

Growing: the cap rises in a straight line from `start_share` of the trainer's to all of it at step
`grow_steps`.  Truncating: it is `share` of the trainer's in every step.

Source: arXiv 2605.31490, for on-policy distillation only, where every token has its own loss and a
cut answer still teaches.  POPD grows the horizon up to threefold over the training; TOPD keeps
10 % of it.  The source itself sees it fail on tasks that need the whole horizon.  With a reward for
the final answer a cut sample is a failed one: short caps then teach to be short.

Correctness class: modified.  The objective is that of the shorter horizon.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.policies.contract import PromptPolicy, Stateless
from steersman.policies.prompting import PromptChoice, PromptRequest, WholeGroups
from steersman.policies.prompts._rounds import in_order


@dataclass
class HorizonSchedule(Stateless, WholeGroups):
    """The rule of the module's docstring."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    mode: Literal["grow", "truncate"] = "grow"
    start_share: float = 1 / 3
    """Where growing starts: threefold growth is the most that the source reports."""
    grow_steps: int = 200
    """Steps until the trainer's own cap; the paper leaves it open for other runs than its own."""
    share: float = 0.1
    """Of the trainer's cap, where it is truncated."""

    def __post_init__(self) -> None:
        for name, value in (("start_share", self.start_share), ("share", self.share)):
            if not 0.0 < value <= 1.0:
                raise InvalidInputError(f"{name} is {value}; valid: above 0, at most 1")
        if self.grow_steps < 1:
            raise InvalidInputError(f"grow_steps is {self.grow_steps}; valid: 1 or more")

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next ones, with the cap of this step."""
        cap = max(1, round(self._share(request.step) * request.max_new_tokens))
        reason = f"{cap} of {request.max_new_tokens} tokens at step {request.step}"
        choice = in_order(request, request.groups_wanted, request.group_size, reason)
        return replace(choice, max_new_tokens=np.full(len(choice), cap))

    def _share(self, step: int) -> float:
        if self.mode == "truncate":
            return self.share
        done = min(max(step / self.grow_steps, 0.0), 1.0)
        return self.start_share + done * (1.0 - self.start_share)


PLUGIN: type[PromptPolicy] = HorizonSchedule
