"""As many prompts as the batch lacks, in the data loader's order: what every trainer does.

Each gets the trainer's group size and cap.  A data loader shuffles, so that each candidate is as
likely as any other to be among the first.
Correctness class: exact.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.lifecycle import CorrectnessClass
from steersman.policies.contract import PromptPolicy, Stateless
from steersman.policies.prompting import PromptChoice, PromptRequest, WholeGroups


@dataclass
class Uniform(Stateless, WholeGroups):
    """No options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next ones."""
        offered = len(request.candidates)
        row = np.arange(min(request.groups_wanted, offered))
        share = np.full(len(row), len(row) / max(offered, 1))
        return PromptChoice.of(request, row, share, "next in the data loader's order")


PLUGIN: type[PromptPolicy] = Uniform
