"""Prompt choice as verl's curriculum sampler (verl 0.5 to 0.9.0; 0.9.1 has no such place any more).

    data.sampler.class_path=pkg://steersman.controller.prompts.verl_sampler
    data.sampler.class_name=VerlPromptSampler
    data.dataloader_num_workers=0
    +data.sampler.policy=prompt_value +data.sampler.group_size=8      # both optional

verl's `create_rl_sampler` builds the class from the data set and its `data` section, and refuses
what is no `AbstractSampler`; the trainer calls `update(batch)` once per step, on the driver; its
`StatefulDataLoader` stores `state_dict`.  Prompts are named by `extra_info.index`, which verl hands
on with each sample, so that it must differ between rows.  Samples are grouped by verl's `uid`.

A recipe that drops degenerate groups before it updates (DAPO's) hides them from the sampler, which
then thinks too well of them.  verl samples every prompt `rollout.n` times and cuts it at its own
length: a policy's sizes and caps have no effect here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from steersman.controller.plugins import build
from steersman.controller.prompts.chooser import PromptChooser
from steersman.controller.prompts.torch_sampler import PromptSampler
from steersman.estimators.errors import InvalidInputError

try:
    from verl.experimental.dataset.sampler import AbstractCurriculumSampler
except ImportError as error:
    raise InvalidInputError(
        "steersman.controller.prompts.verl_sampler needs verl 0.5 to 0.9.0, which has "
        "verl.experimental.dataset.sampler; it is not installed here"
    ) from error

DEFAULT_POLICY = "prompt_value"
DEFAULT_GROUP_SIZE = 8
"""What a policy that weighs groups by their size assumes; `rollout.n` is not in the section."""


class VerlPromptSampler(AbstractCurriculumSampler):  # type: ignore[misc]
    """One of the driver's."""

    def __init__(self, data_source: Any, data_config: Any) -> None:
        ours = data_config.sampler
        chooser = PromptChooser(
            build("policies.prompts", ours.get("policy", DEFAULT_POLICY), ours.get("options", {})),
            group_size=ours.get("group_size", DEFAULT_GROUP_SIZE),
            max_new_tokens=data_config.max_response_length,
            seed=data_config.get("seed") or 0,
        )
        batch = data_config.get("gen_batch_size") or data_config.train_batch_size
        self._sampler = PromptSampler(
            chooser, _names(data_source), prompts_per_draw=batch, rank=0, world_size=1
        )
        self._updates = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def update(self, batch: Any) -> None:
        """Learn a step's batch."""
        rewards = batch.batch["token_level_scores"].sum(-1).cpu().numpy().astype(np.float64)
        tokens = batch.batch["response_mask"].sum(-1).cpu().numpy().astype(np.int64)
        names, uids = batch.non_tensor_batch["index"], batch.non_tensor_batch["uid"]
        _, first, group = np.unique(uids, return_index=True, return_inverse=True)
        for row in np.argsort(first).tolist():  # in the order of the batch: uids are random
            own = group == row
            self._sampler.observe(
                _plain(names[first[row]]),
                rewards[own].tolist(),
                self._updates,
                tokens[own].tolist(),
            )
        self._updates += 1

    def state_dict(self) -> dict[str, Any]:
        """For the loader's checkpoint."""
        return {"sampler": self._sampler.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._sampler.load_state_dict(state["sampler"])
        self._updates = int(state["updates"])


def _names(data_source: Any) -> Sequence[str | int]:
    try:
        return [_plain(info["index"]) for info in data_source.dataframe["extra_info"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidInputError(
            "the data set has no extra_info.index in each row, by which verl names prompts"
        ) from error


def _plain(name: Any) -> str | int:
    return name if isinstance(name, str) else int(name)
