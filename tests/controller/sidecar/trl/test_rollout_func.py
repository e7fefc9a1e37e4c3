"""`rollout_func` for the synchronous trainer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_sampler import FakeSampler
from support.trl_scene import FakeArguments, FakeTokenizer, rows, tensors

from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.rollout_func import GatewayRollouts
from steersman.controller.sidecar.trl.weights import FileWeightTransfer
from steersman.estimators.errors import InvalidInputError

PROMPTS = [row["prompt"] for row in rows(3)]


@dataclass
class FakeTrainer:
    """What a rollout function sees of `GRPOTrainer`."""

    args: FakeArguments = field(default_factory=FakeArguments)
    processing_class: FakeTokenizer = field(default_factory=FakeTokenizer)
    state: Any = field(default_factory=lambda: SimpleNamespace(global_step=0))
    model: Any = field(
        default_factory=lambda: SimpleNamespace(training=True, named_parameters=tensors)
    )
    accelerator: Any = field(
        default_factory=lambda: SimpleNamespace(
            unwrap_model=lambda model: model, is_main_process=True, wait_for_everyone=lambda: None
        )
    )


@asynccontextmanager
async def scene(**knobs: Any) -> AsyncIterator[tuple[Endpoints, FakeSampler]]:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(FakeSampler(steers=True, **knobs))
        yield Endpoints(gateway.url, patience_s=0.3), gateway


def repeated() -> list[Any]:
    return [prompt for prompt in PROMPTS for _ in range(4)]


async def test_a_step_comes_back_in_the_prompts_order_as_whole_groups() -> None:
    async with scene() as (endpoints, gateway):
        rollouts = GatewayRollouts(endpoints)
        told = await asyncio.to_thread(rollouts, repeated(), FakeTrainer())
        assert {body["n"] for body in gateway.asked} == {4}
        assert len({body["steersman"]["group"] for body in gateway.asked}) == 3
        assert len({body["seed"] for body in gateway.asked}) == 3
        assert told["prompt_ids"] == [[1, 2, 30 + i] for i in range(3) for _ in range(4)]
        for ids, logprobs in zip(told["completion_ids"], told["logprobs"], strict=True):
            assert len(ids) == len(logprobs)
        assert len(told["steersman_trajectory"]) == 12
        assert set(told["steersman_exact"]) == {True}
        assert "env_mask" not in told


async def test_weights_go_when_the_step_has_changed_and_only_then(tmp_path: Path) -> None:
    async with scene() as (endpoints, gateway):
        trainer = FakeTrainer()
        rollouts = GatewayRollouts(endpoints, FileWeightTransfer(endpoints, tmp_path))
        for _ in range(2):
            await asyncio.to_thread(rollouts, repeated(), trainer)
        assert gateway.weight_version == "1"
        trainer.state.global_step = 1
        await asyncio.to_thread(rollouts, repeated(), trainer)
        assert gateway.weight_version == "2"
        assert gateway.asked[-1]["steersman"]["weight_version"] == 2
        trainer.accelerator.is_main_process = False
        trainer.state.global_step = 2
        await asyncio.to_thread(rollouts, repeated(), trainer)
        assert gateway.weight_version == "2"


async def test_samples_that_a_rule_left_out_are_masked() -> None:
    async with scene(weight=0.0) as (endpoints, _):
        told = await asyncio.to_thread(GatewayRollouts(endpoints), repeated(), FakeTrainer())
        assert told["steersman_weight"] == [0.0] * 12
        assert {bit for mask in told["env_mask"] for bit in mask} == {0}


async def test_prompts_that_are_no_groups_are_refused() -> None:
    async with scene() as (endpoints, _):
        for prompts in (repeated()[:6], [*repeated()[1:], PROMPTS[0]]):
            with pytest.raises(InvalidInputError, match="4 times each in a row"):
                await asyncio.to_thread(GatewayRollouts(endpoints), prompts, FakeTrainer())


async def test_a_step_that_cannot_be_had_fails_with_one_reason() -> None:
    async with scene(refuses=400) as (endpoints, _):
        with pytest.raises(InvalidInputError, match="answered 400: it will not"):
            await asyncio.to_thread(GatewayRollouts(endpoints), repeated(), FakeTrainer())
