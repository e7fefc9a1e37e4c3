"""Screen prompts with a few samples; only those that pass sometimes get the rest of their group.

A prompt first gets `screen` samples.  If all of them pass or all fail it is dropped, and the rest
of its group is never written; else it gets the samples that its group still lacks, and counts with
all of them.  Rounds follow while groups lack.  Against dynamic sampling a degenerate prompt costs
`screen` samples in place of a whole group.

An informative group costs s / P_s + G - s samples, where P_s is the chance that s screening samples
differ, against G / P_G.  For pass rates drawn from Beta(0.2, 0.2) and s = 4 that is 13 % less at
G = 8 and 24 % less at G = 16; from Beta(1/2, 1/2) 3 % and 6 % less; from the uniform distribution 4
and 3 % more.  Screening is for data most of whose prompts teach nothing, and for large groups.

Source: SPEED-RL (arXiv 2506.09016).  The gradient's signal-to-noise ratio of a prompt is at most
4 N p (1 - p), which is next to nothing where screening samples are all alike.

It cannot here: screen for the next batch while this one is completed, as the paper does to fill the
engines (the screening of a round and its completion are two barriers); keep surplus prompts that
passed the screening for the next step.

Correctness class: modified.  A prompt is drawn in proportion to p' = 1 - p^s - (1 - p)^s for s
screening samples.  Given that, its group is not s + r free draws: the first s are known to differ.
Surplus prompts are left out in the order of the data loader, so that `extend` must see a whole
round at once.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection
from steersman.policies.prompts._rounds import exhausted, in_order, oversampled

FIRST_SHARE, LEAST_SHARE = 0.5, 0.05
"""Of prompts that pass the screening: assumed before any was seen, and the least to reckon with."""
SMOOTHING = 0.3
"""Weight of the last round in that share."""


@dataclass
class SpeedRL:
    """The rule of the module's docstring."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    screen: int = 4
    """Samples of a screening; the paper tries 4 to 8.  Fewer drop more prompts that would teach."""
    oversampling: float = 1.0
    """Prompts screened, over those that are expected to be enough; more of them make fewer rounds
    and waste more screenings."""
    max_rounds: int = 10
    """Rounds of a batch, as dynamic sampling has them; 0: any number."""

    _group_size: int = field(default=0, init=False)
    _lacking: int = field(default=0, init=False)
    _passing: float = field(default=FIRST_SHARE, init=False)
    """Share of prompts that pass the screening, of late."""

    def __post_init__(self) -> None:
        if self.screen < 2:
            raise InvalidInputError(f"screen is {self.screen}; valid: 2 or more")
        if not self.oversampling >= 1.0:
            raise InvalidInputError(f"oversampling is {self.oversampling}; valid: 1 or more")
        if self.max_rounds < 0:
            raise InvalidInputError(f"max_rounds is {self.max_rounds}; valid: 0 or more")

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next prompts, with a screening's samples."""
        self._group_size, self._lacking = request.group_size, request.groups_wanted
        if (none := exhausted(request, self.max_rounds)) is not None:
            return none
        size = min(self.screen, request.group_size)
        reason = f"screening with {size} samples each: {request.groups_wanted} groups lack"
        per_group = self.oversampling / max(self._passing, LEAST_SHARE)
        return in_order(request, oversampled(self._lacking, per_group), size, reason)

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """The rest of the group, where the screening's samples differ, as long as groups lack."""
        missing = np.maximum(self._group_size - groups.size, 0)
        goes_on = groups.informative & (missing > 0)
        goes_on &= np.cumsum(goes_on) <= self._lacking
        self._lacking -= int(goes_on.sum())
        return np.where(goes_on, missing, 0)

    def learn(self, groups: FinishedGroups) -> None:
        """What share of prompts passes the screening."""
        if len(groups):
            self._passing += SMOOTHING * (float(groups.informative.mean()) - self._passing)

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """Whole groups whose rewards differ."""
        accepted = groups.informative & (groups.size >= self._group_size)
        return Selection(accepted, accepted[groups.group_row], correctness=self.correctness)

    def state_dict(self) -> dict[str, Any]:
        """The batch that is being filled, and the share that passes."""
        own = {"group_size": self._group_size, "lacking": self._lacking}
        return {**own, "passing": self._passing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with that batch."""
        self._group_size, self._lacking = int(state["group_size"]), int(state["lacking"])
        self._passing = float(state["passing"])


PLUGIN: type[PromptPolicy] = SpeedRL
