"""ROLL's rollout loop, whose prompts are chosen, on fakes made after its source (8eb27cc).

Recorded: `DynamicSamplingScheduler.get_next_dataset_item`, `RolloutContext.get_request_data`,
`.compute_rewards` and `UserDefinedRolloutLoop.process_new_prompt`.
"""

import importlib
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

SIZE = 4


class OwnLoop:
    """ROLL's loop: takes a row, generates, rewards, and drops groups of equal rewards."""

    async def process_new_prompt(self, context: Any) -> Any:
        row, domain = context.get_request_data(meta_info=context.meta_info)
        rewards = []
        for _ in range(SIZE):
            told = await context.compute_rewards(req=row, domain=domain)
            rewards += told.batch["response_level_rewards"].tolist()
        return None if len(set(rewards)) == 1 else (row, rewards)


@dataclass
class Scheduler:
    """Draws rows from an iterator of indices."""

    dataset: list[int]
    get_data_item_kwargs: dict[str, Any] = field(default_factory=dict)
    dataset_iter: Any = None

    def get_next_dataset_item(self) -> int:
        if self.dataset_iter is None:
            self.dataset_iter = iter(range(len(self.dataset)))
        return self.dataset[next(self.dataset_iter)]


class Context:
    """Of one prompt.  Row r passes with probability `odds[r]`."""

    def __init__(self, scheduler: Scheduler, odds: list[float], rng: np.random.Generator) -> None:
        self._scheduler, self._odds, self._rng = scheduler, odds, rng
        self.meta_info = {"generation_config": {"num_return_sequences": SIZE}}
        self.pipeline_config = SimpleNamespace(rollout_batch_size=8)
        self.is_val, self.sequence_length, self.prompt_length = False, 512, 128
        self.sampling_start_step = 3

    def get_request_data(self, meta_info: Any) -> tuple[int, str]:
        return self._scheduler.get_next_dataset_item(), "math"

    async def compute_rewards(self, req: int, domain: str) -> Any:
        reward = np.array([float(self._rng.random() < self._odds[req])])
        return SimpleNamespace(batch={"response_level_rewards": reward})


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("roll.distributed.scheduler.user_defined_rollout_loop")
    module.UserDefinedRolloutLoop = OwnLoop  # type: ignore[attr-defined]
    for name in ("roll", "roll.distributed", "roll.distributed.scheduler"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "steersman.controller.sidecar.roll", raising=False)
    monkeypatch.setenv("STEERSMAN_PROMPTS__NAME", "prompt_value")
    ours = importlib.import_module("steersman.controller.sidecar.roll")
    yield ours.PromptValueLoop()
    sys.modules.pop("steersman.controller.sidecar.roll", None)


async def test_prompts_that_teach_come_more_often_and_dropped_groups_are_learned_from(
    loop: Any,
) -> None:
    odds = [0.0] * 30 + [0.5] * 30 + [1.0] * 30
    scheduler, rng = Scheduler(list(range(90))), np.random.default_rng(0)
    drawn, kept = [], 0
    for _ in range(600):
        context = Context(scheduler, odds, rng)
        answer = await loop.process_new_prompt(context)
        drawn.append(loop._order.last)
        kept += answer is not None
    late = np.array(drawn[300:])
    assert np.mean((late >= 30) & (late < 60)) > 0.6
    assert kept > 300  # at random it would be a third of 600, nearly


async def test_validation_draws_its_rows_in_their_own_order(loop: Any) -> None:
    scheduler = Scheduler(list(range(5)))
    context = Context(scheduler, [0.5] * 5, np.random.default_rng(1))
    context.is_val = True
    await loop.process_new_prompt(context)
    assert next(scheduler.dataset_iter) == 1
    assert loop._order is None


async def test_a_data_loader_of_rolls_is_left_alone(loop: Any) -> None:
    scheduler = Scheduler(list(range(5)), {"use_dataloader": True})
    await loop.process_new_prompt(Context(scheduler, [0.5] * 5, np.random.default_rng(1)))
    assert loop._order is None


async def test_a_prompt_that_fails_before_its_rewards_teaches_nothing(loop: Any) -> None:
    scheduler = Scheduler(list(range(5)))
    context = Context(scheduler, [0.5] * 5, np.random.default_rng(1))

    async def fails(req: int, domain: str) -> Any:
        raise RuntimeError("the judge is away")

    context.compute_rewards = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await loop.process_new_prompt(context)
    assert (await loop.process_new_prompt(Context(scheduler, [0.5] * 5, context._rng))) is not False
