"""A group that is not delivered yet: its slots, their seeds, and their answers.

A group is *settled* when each slot is answered or parked; it is *complete* when each is answered.
"""

from dataclasses import dataclass, field

from steersman.controller.results import (
    CHOSEN_BY_THE_CALLER,
    Group,
    GroupTerms,
    Prompt,
    Trajectory,
)
from steersman.mechanisms.execution import Execution, mixed_seed, replace_seed
from steersman.mechanisms.fleet import Sampling


@dataclass(eq=False)
class GroupState:
    """A group that is not delivered yet."""

    group_id: int
    prompt: Prompt
    size: int
    step: int
    max_new_tokens: int
    sampling: Sampling
    row: int
    terms: GroupTerms = CHOSEN_BY_THE_CALLER
    extended_from: int = 0
    """Samples it had when it last got more; 0: never."""
    slots: list[Execution] = field(default_factory=list)
    answered: int = 0
    parked: int = 0

    @property
    def complete(self) -> bool:
        """Every slot has its answer."""
        return self.answered == self.size

    @property
    def settled(self) -> bool:
        """Nothing of it will change before a parked trajectory is resumed."""
        return self.answered + self.parked == self.size

    def sampling_of(self, slot: int, redraw: int) -> Sampling:
        """The group's sampling with a seed of its own for each slot.

        The seed depends on what is asked (the how-many-eth group, which slot), not on when or where
        it runs, so that two policies under one seed draw the same trajectories while weights are
        the same.  `redraw` tells a fresh sample from the one it replaces.
        """
        seed = self.sampling.seed
        if seed is None:
            return self.sampling
        return replace_seed(self.sampling, mixed_seed(seed, self.group_id, slot, redraw))

    def answer(self, step: int, weight_version: int) -> Group:
        """What the caller gets, once the group is complete."""
        return Group(
            group_id=self.group_id,
            prompt_id=self.prompt.prompt_id,
            admitted_step=self.step,
            delivered_step=step,
            trajectories=tuple(self.trajectory(slot, weight_version) for slot in range(self.size)),
            terms=self.terms,
        )

    def trajectory(self, slot: int, weight_version: int) -> Trajectory:
        """The answer in that slot; `weight_version` is the trainer's."""
        execution = self.slots[slot]
        assert execution.disposition is not None
        oldest = execution.oldest_weight_version
        return Trajectory(
            trajectory_id=execution.spec.trajectory_id,
            prompt_id=self.prompt.prompt_id,
            slot=slot,
            token_ids=execution.tokens,
            logprobs=execution.logprobs,
            segments=execution.segments,
            disposition=execution.disposition,
            correctness=execution.correctness,
            weight=execution.weight,
            lag=0 if oldest is None else weight_version - oldest,
            moves=execution.moves,
            deferrals=execution.deferrals,
        )
