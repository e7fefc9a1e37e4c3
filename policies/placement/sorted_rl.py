"""SortedRL: load several batches of prompts at once, update on what is done first, keep the rest.

Source: arXiv 2603.23414.  The trainer loads `oversubscription` batches of groups.  They wait at the
controller, and whenever a replica has a slot the next one is placed, so that engines stay full.  As
soon as one batch of groups is complete the rollout phase ends, and the trainer updates on it.
What is unfinished waits for the next phase.  *Grouped loading*: no new prompts are asked for until
all of the load has been trained on, so slow prompts cannot starve.

`mode` says what becomes of unfinished trajectories.  `partial`: they keep their tokens and go on
under newer weights.  `on_policy`: their tokens are thrown away, and a fresh sample is drawn in a
later phase.

Batches are sorted by length by construction, short first: within a load the first holds the short
groups, the last the long ones.  That is a curriculum, not only a schedule.  The last phase of a
load waits for its longest trajectory.

Left open by the paper, decided here: the order of placing is that of `rollout_pipe` (groups of the
older load first, then those with the fewest samples left).  The paper's unit is a sample, here it
is the group, since a group is trained on whole.  A sample that has ended cannot be taken back, so
in `on_policy` mode siblings of discarded ones are older than the weights by up to a load's phases.
A load's phases hold it to `oversubscription` - 1 versions of lag.  If groups of an older load are
still unfinished when the next one begins, no phase ends before they are complete.

A trainer that needs all groups of a step (`groups_wanted` 0), and a stream, get the default rule:
fewest in flight.  Correctness class: corrected, in `partial` mode.  In `on_policy` mode it is
empirical, whatever the name says: a sample is kept if it ends before the cut and drawn anew if
not, which prefers short answers of the same prompt (simulated, strong tail: 30 % fewer tokens per
answer, and for four tokens kept three are thrown away).  Restarted samples carry that class one by
one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Decision
from steersman.policies.placement._cut import (
    ALL_AT_ONCE,
    MANY,
    Batch,
    end_step,
    frontier_first,
    place,
)

NAME = "sorted_rl"
MODES = ("partial", "on_policy")


@dataclass
class SortedRL:
    """Three options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED
    GUARD: ClassVar[Mapping[str, float]] = {**ALL_AT_ONCE, "max_restarts": MANY, "max_lag": 3}
    """A load of four batches is trained on in four steps: its last samples are three versions old.
    Restarts need no bound: a slot has at most one in each phase of its load but the last."""

    mode: Literal["partial", "on_policy"] = "partial"
    """What is unfinished at the end of a phase keeps its tokens, or is drawn anew."""
    oversubscription: float = 4.0
    """Batches of groups in a load, 1 or more; 1: every phase waits for all it asked for.  The paper
    leaves it open; with more than four, `max_lag` must rise."""
    backlog: int = 2
    """Trajectories kept in a replica's own queue; 0 lets slots idle until the next decision."""

    _batch: Batch = field(default_factory=Batch, init=False)
    _loaded_step: int = field(default=-1, init=False)
    """When the present load began."""
    _left: int = field(default=0, init=False)
    """Groups that were open when the present step began."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidInputError(f"mode is {self.mode!r}; valid: {', '.join(MODES)}")
        if not (self.oversubscription >= 1 and math.isfinite(self.oversubscription)):
            raise InvalidInputError(
                f"oversubscription is {self.oversubscription}; valid: 1 or more"
            )
        if self.backlog < 0:
            raise InvalidInputError(f"backlog is {self.backlog}; valid: 0 or more")

    def groups_to_ask(self, groups_wanted: int) -> int:
        """No new ones while the load lasts for another batch, else a load."""
        if self._left - self._batch.wanted >= max(self._batch.size, groups_wanted):
            return groups_wanted
        return self._batch.to_ask(groups_wanted, self.oversubscription)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Keep the slots full until the batch is, then put off the rest."""
        self._follow(observation)
        batch = self._batch
        if not batch.wanted:
            return place(observation, observation.queued, NAME, "fewest in flight")
        older = observation.groups.step < self._loaded_step
        if batch.full and not older.any():
            return end_step(
                observation,
                keep=self.mode == "partial",
                policy=NAME,
                reason="the batch is full; the next phase goes on with it",
            )
        rows = frontier_first(observation)
        return place(observation, rows, NAME, "a slot is free; its group is next", self.backlog)

    def _follow(self, observation: Observation) -> None:
        if not self._batch.follow(observation):
            return
        self._left = len(observation.groups)
        if (observation.groups.step == observation.trainer.step).any():
            self._loaded_step = observation.trainer.step

    def state_dict(self) -> dict[str, Any]:
        """How full the batch is, and how much of the load is left."""
        return {
            "batch": self._batch.state_dict(),
            "loaded_step": self._loaded_step,
            "left": self._left,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what it knows of the step."""
        self._batch = Batch.from_state(state["batch"])
        self._loaded_step, self._left = int(state["loaded_step"]), int(state["left"])


PLUGIN: type[PlacementPolicy] = SortedRL
