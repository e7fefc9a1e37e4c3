"""Draft only while a replica's batch is small.

The second layer of WAR (arXiv 2607.17299): speculation is on where a replica's effective batch is
below 16, a figure from the authors' benchmark of one model (8192 tokens in, 512 out).  As an option
the number of tokens follows the batch by a list of ranges, as in vLLM's setting
`num_speculative_tokens_per_batch_size`; there the engine looks at every iteration, here the
controller does at every tick.

An idle replica is left as it is.  The threshold depends on model, hardware and drafter, and knows
neither acceptance nor cost; a batch that swings around it switches at every tick, since the source
has no hysteresis.  Correctness class: exact, provided the engine's verification is lossless.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import SpeculationPolicy, Stateless
from steersman.policies.decision import DraftDecision
from steersman.policies.speculation._drafts import LEAVE, changes, effective_batch

NAME = "batch_threshold"


@dataclass
class BatchThreshold(Stateless):
    """The default threshold is WAR's."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    below: int = 16
    """Smallest batch at which nothing is drafted any more."""
    draft_tokens: int = 8
    """Tokens drafted below it; an engine that can do fewer does fewer.  WAR drafts from suffix
    trees, whose drafts end by themselves; our sources give no limit."""
    by_batch: tuple[tuple[int, int, int], ...] = ()
    """(first, last, tokens) for batches from first to last, both included, instead of the two
    above; the first range that fits counts, and a batch in none drafts nothing."""

    def __post_init__(self) -> None:
        ranges = all(0 <= first <= last and k >= 0 for first, last, k in self.by_batch)
        if not (ranges and self.below >= 0 and self.draft_tokens >= 0):
            raise ValueError("batches and draft tokens are not negative, and first <= last")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[DraftDecision]:
        """Switch every replica whose batch has crossed the threshold."""
        batch = effective_batch(observation)
        ranges = self.by_batch or ((0, self.below - 1, self.draft_tokens),)
        fits = [(batch >= first) & (batch <= last) for first, last, _ in ranges]
        wanted = np.select(fits, [k for _, _, k in ranges], default=0)
        wanted = np.where(batch > 0, wanted, LEAVE)
        reasons = [f"batch {b}" for b in batch.tolist()]
        return changes(observation, wanted, NAME, reasons)


PLUGIN: type[SpeculationPolicy] = BatchThreshold
