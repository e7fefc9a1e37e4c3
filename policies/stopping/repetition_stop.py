"""Stop what has been repeating itself for long, as a failure.

Kimi k1.5 (arXiv 2501.12599) detects repetition while it samples long answers, ends the looping ones
early and gives them a penalty.  A trajectory that has written `patience_tokens` tokens in a row
while the share of its last tokens that repeat what it wrote before stayed above `share` is stopped.
Patience is counted in tokens, not seconds: how soon an answer is stopped must not depend on how
busy its replica is.  One observation at or below `share` starts the count anew; one without the
figure (nobody looks) neither adds to it nor ends it, and never stops anything.

Our sources give neither Kimi's detector nor its threshold, length or penalty; the two options are
this project's.

The trainer must reward a stopped trajectory as it rewards a failed one (Kimi: a penalty).  Then
the samples are unbiased for the task in which looping is failing: correctness class modified.  A
trainer that scores the cut answer, or leaves it out, gets a bias that depends on content
(empirical).  An answer that repeats with good reason (a table, a program's printout) is stopped
as well.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import StoppingPolicy
from steersman.policies.decision import Action, Decision
from steersman.policies.stopping._memory import Memory

NAME = "repetition_stop"


@dataclass
class RepetitionStop:
    """The defaults are meant to stop only what hardly writes anything new."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    share: float = 0.8
    """Repeated share of the last tokens, 0..1, above which a trajectory counts as repeating.
    High, since derivations and programs copy much of what they build on; not tuned."""
    patience_tokens: int = 512
    """Tokens it must write while it repeats: what a loop costs before it is stopped, and how long a
    table or list may be.  Not tuned."""

    _memory: Memory = field(default_factory=lambda: Memory.of("repeating"), init=False)
    """Per trajectory: tokens written since it began to repeat."""

    def __post_init__(self) -> None:
        if not (0.0 <= self.share < 1.0 and self.patience_tokens >= 1):
            raise ValueError("share must lie in [0, 1) and patience_tokens be at least 1")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Stop whatever runs and has lost its patience."""
        t = observation.trajectories
        wrote = self._memory.follow(t)
        repeating = self._memory.columns["repeating"]
        repeating[t.repeated_share > self.share] += wrote[t.repeated_share > self.share]
        repeating[t.repeated_share <= self.share] = 0.0
        running = observation.running
        over = (repeating[running] >= self.patience_tokens) & (
            t.repeated_share[running] > self.share
        )
        return [
            Decision(
                trajectory_id=int(t.trajectory_id[row]),
                action=Action.STOP,
                policy=NAME,
                reason=f"{t.repeated_share[row]:.0%} of its last tokens repeat earlier ones, for "
                f"{repeating[row]:.0f} tokens: stopped as failed",
                row=row,
            )
            for row in running[over].tolist()
        ]

    def state_dict(self) -> dict[str, Any]:
        """Since when each repeats."""
        return self._memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace it."""
        self._memory = Memory.from_state(state)


PLUGIN: type[StoppingPolicy] = RepetitionStop
