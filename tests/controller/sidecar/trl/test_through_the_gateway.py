"""The adapter and the real gateway, over engines that write a text of their own."""

import asyncio
import queue
from typing import Any

import pytest
from support.gateway import gateway
from support.trl_scene import FakeArguments, FakeTokenizer, rows

from steersman.controller.sidecar.trl.client import Client, RefusedError
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.groups import prompt_name, roll_out
from steersman.controller.sidecar.trl.worker import SteersmanRolloutWorker


async def test_a_step_comes_back_whole_and_each_sample_with_its_history() -> None:
    async with gateway(2) as g:
        prompts = [[3, 4, 5], [3, 4, 6]]
        fields = {"max_tokens": 9, "temperature": 1.0, "top_k": 0, "seed": 1}
        groups = await asyncio.to_thread(
            roll_out, Endpoints(g.url), prompts, 4, fields, step=2, weight_version=0
        )
        assert [len(group) for group in groups] == [4, 4]
        for answer in (answer for group in groups for answer in group):
            assert len(answer.token_ids) == len(answer.logprobs) > 0
            assert answer.steered is not None
            assert answer.segments[0]["engine"] in ("engine-0", "engine-1")
            assert (answer.exact, answer.weight, answer.oldest_version) == (True, 1.0, 0)
        names = {group.prompt.prompt_id for group in g.desk.ledger.groups.values()}
        assert names == {prompt_name(prompt) for prompt in prompts}
        assert g.desk.pace.step == 2


async def test_the_worker_s_groups_are_groups_of_the_gateway_and_rewarded() -> None:
    async with gateway(2) as g:
        worker = SteersmanRolloutWorker(
            Endpoints(g.url, request_timeout_s=30),
            rows(6),
            lambda completion_ids, **_: [0.5] * len(completion_ids),
            FakeTokenizer(),
            FakeArguments(),
            drop_degenerate=False,
        )

        def first(count: int) -> list[Any]:
            samples: list[Any] = []
            while len(samples) < count:
                try:
                    samples.append(worker.rollout_buffer.get(timeout=0.05))
                except queue.Empty:
                    worker.check_health(30.0)
            return samples

        worker.start()
        try:
            samples = await asyncio.to_thread(first, 8)
        finally:
            await asyncio.to_thread(worker.stop)
        assert {sample.metrics["steersman/steered"] for sample in samples} == {1.0}
        assert {sample.model_version for sample in samples} == {0}
        rewarded = [r for r in g.trace.records if type(r).__name__ == "Rewarded"]
        assert len(rewarded) >= 8


async def test_rewards_of_unknown_trajectories_are_no_reason_to_fail() -> None:
    async with gateway(1) as g, Client(Endpoints(g.url)) as client:
        await client.tell_rewards([(12345, 1.0)])


async def test_what_the_engines_refuse_is_told_with_their_reason() -> None:
    async with gateway(2) as g:
        with pytest.raises(RefusedError, match=r"answered 400: .*max_tokens"):
            await asyncio.to_thread(
                roll_out, Endpoints(g.url), [[3]], 2, {"max_tokens": 0}, step=0, weight_version=0
            )
