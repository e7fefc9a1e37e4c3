"""ROLL (RLVR pipeline): its prompts, chosen by what they teach.

    user_defined_rollout_loop_cls: steersman.controller.sidecar.roll.PromptValueLoop

ROLL's scheduler hands each new prompt to one object of that class.  What it does with the prompt
stays ROLL's own: generation, rewards, filters, retries.  Ours are two things around it:

- the scheduler draws its next data row from an iterator of indices, once per prompt; ours takes
  that iterator's place, and yields what the prompt policy chooses;
- rewards are noted as they are computed, before ROLL's filter drops a group, since dropped groups
  tell most of all.

The policy is the configuration's (`prompts.name`), from the file that `STEERSMAN_CONFIG` names and
from the environment.  ROLL's weights have no version here: the step at which a prompt's sampling
began stands for it.  Validation is left alone; so is a pipeline that draws rows by a data loader
(`get_data_item_kwargs.use_dataloader`), which would not notice.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roll.distributed.scheduler.user_defined_rollout_loop import UserDefinedRolloutLoop

from steersman.controller.config import load_config
from steersman.controller.prompts.building import chooser_of
from steersman.controller.prompts.torch_sampler import PromptSampler

log = logging.getLogger(__name__)


class PromptValueLoop(UserDefinedRolloutLoop):  # type: ignore[misc]
    """One per scheduler: ROLL makes it without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._order: _Order | None = None

    async def process_new_prompt(self, context: Any) -> Any:
        """ROLL's own, for the prompt that the policy chose."""
        scheduler = context._scheduler
        if context.is_val or scheduler.get_data_item_kwargs.get("use_dataloader", False):
            return await super().process_new_prompt(context)
        if self._order is None:
            self._order = _Order(scheduler, context)
        scheduler.dataset_iter = self._order  # ROLL makes a new one of its own after an epoch
        group = _Group(context, self._order)
        try:
            return await super().process_new_prompt(context)
        finally:
            group.tell()


class _Order:
    """Yields indices of the data set; knows the last one."""

    def __init__(self, scheduler: Any, context: Any) -> None:
        environ = dict(os.environ)
        path = environ.pop("STEERSMAN_CONFIG", "")
        config = load_config(Path(path) if path else None, (), environ)
        size = context.meta_info["generation_config"]["num_return_sequences"]
        most = max(context.sequence_length - context.prompt_length, 1)
        self.sampler = PromptSampler(
            chooser_of(config, size, most),
            range(len(scheduler.dataset)),
            prompts_per_draw=context.pipeline_config.rollout_batch_size,
            endless=True,
            rank=0,
            world_size=1,
        )
        self.last = -1
        self._indices = iter(self.sampler)
        log.info("prompts are chosen by %s", config.prompts.name)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.last = next(self._indices)
        return self.last


class _Group:
    """The samples of one prompt, whose rewards are noted on their way."""

    def __init__(self, context: Any, order: _Order) -> None:
        self._context, self._order = context, order
        self._index = -1
        self._rewards: list[float] = []
        self._get, self._compute = context.get_request_data, context.compute_rewards
        context.get_request_data = self._get_request_data
        context.compute_rewards = self._compute_rewards

    def tell(self) -> None:
        """The policy learns what is known; nothing, if nothing was rewarded."""
        if self._index >= 0 and self._rewards:
            step = int(self._context.sampling_start_step or 0)
            self._order.sampler.observe(self._index, self._rewards, step)

    def _get_request_data(self, meta_info: Any) -> Any:
        data = self._get(meta_info)
        self._index = self._order.last
        return data

    async def _compute_rewards(self, req: Any, domain: str) -> Any:
        rewards = await self._compute(req=req, domain=domain)
        told = rewards.batch["response_level_rewards"]
        self._rewards += [float(value) for value in told.reshape(-1).tolist()]
        return rewards
