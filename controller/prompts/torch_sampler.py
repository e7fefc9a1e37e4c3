"""Prompt choice as a torch `Sampler`: dataset indices, in the order in which the policy wants them.

    sampler = PromptSampler(chooser, prompt_ids, prompts_per_draw=64)
    for batch in DataLoader(dataset, batch_size=64, sampler=sampler):
        ...                                            # roll out, reward, train
        sampler.observe(prompt_id, rewards, weight_version)       # each group of the batch
        torch.save(sampler.state_dict(consumed=prompts that this loop has taken so far), path)

*Checkpoints.*  With workers the loader has drawn batches that the trainer has not seen; only the
trainer knows how many prompts it took, and tells it as `consumed`.  Without it, whatever was drawn
counts as consumed.  That is right for a loader without workers, and for torchdata's
`StatefulDataLoader`, which asks for the state as it draws a batch and hands out that of the batch
that the trainer took last.  With workers such a state is as old as that draw: no prompt is lost or
repeated, but the rewards of the batches that were in the loader then are not in it.

*Feedback.*  Prompts are drawn as many batches before they are trained on as the loader prefetches;
those rewards come too late for the choice.  `num_workers=0` loses none.

*Ranks.*  Each rank holds an equal chooser and takes its share of each draw, so that what one learns
all must learn: `observe` what all ranks know, or let `observe_ranks` gather what each knows for
itself.  It also compares the ranks and says which one went astray.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np

from steersman.controller.prompts.chooser import PromptChooser, PromptId
from steersman.controller.prompts.order import PromptOrder, PromptTerms
from steersman.estimators.errors import InvalidInputError

try:
    import torch.distributed
    from torch.utils.data import Sampler
except ImportError as error:
    raise InvalidInputError(
        "steersman.controller.prompts.torch_sampler needs torch, which is not installed: "
        "pip install torch"
    ) from error


class RewardedGroup(NamedTuple):
    """What a rank knows of a prompt: all samples of a group, or those that it rolled out."""

    prompt_id: PromptId
    rewards: Sequence[float]
    """One per sample; NaN where it is not known."""
    tokens: Sequence[int] | None = None
    """Written for each sample."""


Gather = Callable[[Any], list[Any]]
"""Gives each rank what all ranks passed to it, in the order of ranks."""


class PromptSampler(Sampler[int]):
    """Yields dataset indices.  One per rank, in the process that holds the `DataLoader`."""

    def __init__(
        self,
        chooser: PromptChooser,
        prompt_ids: Sequence[PromptId],
        *,
        prompts_per_draw: int,
        endless: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        gather: Gather | None = None,
    ) -> None:
        """`prompt_ids[i]` names the data set's i-th prompt.

        Parameters
        ----------
        prompts_per_draw
            Prompts asked for at a time, of all ranks together: the trainer's batch.
        endless
            Without epochs: a prompt may come again at any time, and there is no end.
        rank, world_size
            Of torch.distributed, if it is initialised, else 0 and 1.
        gather
            For `observe_ranks`; `torch.distributed.all_gather_object`, unless given.
        """
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if world_size is None:
            world_size = torch.distributed.get_world_size() if distributed else 1
        if rank is None:
            rank = torch.distributed.get_rank() if distributed else 0
        self._order = PromptOrder(
            chooser,
            prompt_ids,
            prompts_per_draw=prompts_per_draw,
            endless=endless,
            rank=rank,
            world_size=world_size,
        )
        self._gather = gather if gather is not None else _gather_objects

    def __iter__(self) -> Iterator[int]:
        """The rest of this epoch, or the next one if it is over."""
        self._order.start()
        return iter(self._order.take, None)

    def __len__(self) -> int:
        """Prompts per epoch on this rank, the most."""
        if self._order.endless:
            raise TypeError("an endless PromptSampler has no length")
        return self._order.per_epoch

    @property
    def epoch(self) -> int:
        """Number of the present epoch."""
        return self._order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin that epoch; nothing happens if it is under way."""
        self._order.begin(epoch)

    def terms(self, index: int) -> PromptTerms:
        """Size, token cap, inclusion probability and weight of a prompt that was yielded."""
        return self._order.terms(index)

    def longest_unvisited(self) -> tuple[PromptId, int]:
        """The prompt that was drawn, or came into the data set, the longest ago, and how many draws
        ago: what starves, if anything does."""
        return self._order.chooser.longest_unvisited(self._order.draws)

    def observe(
        self,
        prompt_id: PromptId,
        rewards: Sequence[float],
        weight_version: int,
        tokens: Sequence[int] | None = None,
    ) -> None:
        """Learn from a group of which every rank is told alike; NaN: that reward is not known."""
        self._order.index(prompt_id)  # names a prompt that is not there
        self._order.weight_version = max(self._order.weight_version, weight_version)
        self._order.chooser.observe(prompt_id, rewards, weight_version, tokens)

    def observe_ranks(self, groups: Sequence[RewardedGroup], weight_version: int) -> None:
        """Learn from what each rank knows: a collective call, which all ranks must make.

        Samples of one prompt on several ranks are one group.
        """
        mine = (self._order.fingerprint(), weight_version, [tuple(group) for group in groups])
        told = self._gather(mine)
        for rank, (fingerprint, version, _) in enumerate(told):
            if (fingerprint, version) != mine[:2]:
                raise InvalidInputError(
                    f"ranks went different ways: rank {rank} is at {(*fingerprint, version)}, rank "
                    f"{self._order.rank} at {(*mine[0], weight_version)} (epoch, prompts taken, "
                    "draws, last prompts drawn, weight version); draw and observe alike on all"
                )
        for group in _merged(RewardedGroup(*group) for _, _, known in told for group in known):
            self.observe(group.prompt_id, group.rewards, weight_version, group.tokens)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """To go on from exactly there; the same on all ranks.

        `consumed`: prompts that the trainer has taken from the loader on this rank since its loop
        over it began; None: all that were yielded to the loader.
        """
        return self._order.state_dict(consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, on as many ranks as there are now and with the prompts of now."""
        self._order.load_state_dict(state)


class RepeatedPrompts(Sampler[int]):
    """As TRL's `RepeatSampler` lays prompts out, for `GRPOTrainer._get_train_sampler`.

    Whole batches of prompts only: each prompt `samples` times in a row, the batch `passes` times.
    TRL deals the samples out to its processes, so that each of them holds the whole sequence: give
    its `PromptSampler` rank 0 of 1.  TRL fixes the group size; a policy's has no effect.  Resume
    with `ignore_data_skip=True`: the sampler itself knows where it was.
    """

    def __init__(
        self, prompts: PromptSampler, *, prompts_per_batch: int, samples: int, passes: int = 1
    ) -> None:
        self._prompts, self._batch = prompts, prompts_per_batch
        self._samples, self._passes = samples, passes

    def __iter__(self) -> Iterator[int]:
        prompts = iter(self._prompts)
        while len(batch := list(islice(prompts, self._batch))) == self._batch:
            for _ in range(self._passes):
                for index in batch:
                    yield from repeat(index, self._samples)

    def __len__(self) -> int:
        batches = len(self._prompts) // self._batch
        return batches * self._batch * self._samples * self._passes

    def set_epoch(self, epoch: int) -> None:
        """As `PromptSampler.set_epoch`."""
        self._prompts.set_epoch(epoch)


def _merged(groups: Iterator[RewardedGroup]) -> list[RewardedGroup]:
    """One group per prompt, in the order of first mention."""
    by_prompt: dict[PromptId, list[RewardedGroup]] = {}
    for group in groups:
        by_prompt.setdefault(group.prompt_id, []).append(group)
    merged = []
    for prompt_id, parts in by_prompt.items():
        tokens = [part.tokens for part in parts if part.tokens is not None]
        merged.append(
            RewardedGroup(
                prompt_id,
                np.concatenate([part.rewards for part in parts]).tolist(),
                np.concatenate(tokens).tolist() if len(tokens) == len(parts) else None,
            )
        )
    return merged


def _gather_objects(mine: Any) -> list[Any]:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return [mine]
    told: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(told, mine)
    return told
