"""SkyRL 0.4's own clients at a gateway: requests, pauses, weights; and its entry, overridden."""

import asyncio
from typing import Any

import pytest
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteInferenceClient,
)
from skyrl.backends.skyrl_train.weight_sync.control_plane import SkyrlWeightSyncClient
from skyrl.train.entrypoints.main_base import BasePPOExp
from support.fake_model import reference
from support.fake_vllm import FakeVllm
from support.gateway import Gateway, gateway

from steersman.controller.attach.environment import environment_findings
from steersman.controller.attach.findings import State
from steersman.controller.attach.trainers import SKYRL
from steersman.controller.sidecar.skyrl import attach, steered

pytestmark = pytest.mark.trainers

PROMPTS = [[70, 71, 72 + number] for number in range(8)]
PARAMS = {
    "min_tokens": 1,
    "skip_special_tokens": True,
    "include_stop_str_in_output": True,
    "max_tokens": 120,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "logprobs": 1,
    "stop": None,
}
"""As `get_vllm_sampling_params` makes them."""


def client_of(g: Gateway) -> RemoteInferenceClient:
    engines = [f"{g.url}/engines/engine-{number}" for number in range(2)]
    return RemoteInferenceClient(g.url, engines, data_parallel_size=1, model_name="fake-model")


def batch(**changed: Any) -> Any:
    return {
        "prompt_token_ids": PROMPTS,
        "sampling_params": PARAMS | changed,
        "session_ids": [f"trajectory-{number}" for number in range(len(PROMPTS))],
        "cache_salt": "3",
    }


def test_every_place_that_it_is_attached_by_is_in_its_source() -> None:
    version, hooks, *_ = environment_findings(SKYRL, "")
    assert hooks.state is State.OK, hooks.words
    assert "skyrl 0.4.0" in version.words


async def test_a_batch_comes_back_as_from_the_engines_whatever_is_moved() -> None:
    async with gateway(2, token_s=0.002) as g, client_of(g) as client:
        call = asyncio.create_task(client.generate(batch(ignore_eos=True)))
        while len(g.running()) < len(PROMPTS) or not all(
            execution.attempt and execution.attempt.generated_tokens for execution in g.running()
        ):
            await asyncio.sleep(0.002)
        moved = g.running()[:4]
        assert all(g.move(execution) for execution in moved)
        output = await call
        assert output["response_ids"] == [reference(p, 120, ignore_eos=True) for p in PROMPTS]
        assert [len(each) for each in output["response_logprobs"]] == [120] * len(PROMPTS)
        assert output["stop_reasons"] == ["length"] * len(PROMPTS)
        assert [execution.moves for execution in moved] == [1] * 4


async def test_a_weight_sync_in_the_midst_of_a_batch_is_understood() -> None:
    async with gateway(2, token_s=0.002) as g, client_of(g) as client:
        call = asyncio.create_task(client.generate(batch(ignore_eos=True)))
        while not g.running():
            await asyncio.sleep(0.002)
        await client.pause_generation()
        assert g.desk.paused
        weights = SkyrlWeightSyncClient(client.server_urls)
        await asyncio.to_thread(weights.start_weight_update)
        await asyncio.to_thread(weights.update_weights, {"names": ["w"], "shapes": [[1]]})
        await asyncio.to_thread(weights.finish_weight_update)
        await client.reset_prefix_cache()
        await client.resume_generation()
        assert (g.desk.paused, g.desk.pace.weight_version) == (False, 1)
        assert [path for path, _ in g.fakes[1].updates] == [
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/reset_prefix_cache",
        ]
        output = await call
        assert [len(tokens) for tokens in output["response_ids"]] == [120] * len(PROMPTS)


async def test_a_finished_session_is_taken_note_of(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(2) as g, client_of(g) as client:
        await client.generate(batch())
        await client.finish_session("trajectory-3")
        assert "trajectory-3" not in g.desk.arrivals._homes
        assert "trajectory-4" in g.desk.arrivals._homes
    assert "finish_session" not in caplog.text


async def test_a_chat_and_a_completion_come_back_with_their_session() -> None:
    async with gateway(2) as g, client_of(g) as client:
        body = {"prompt": "once", "max_tokens": 8, "session_id": "t", "model": "fake-model"}
        told = await client.completion({"json": body, "headers": {}})
        assert told["choices"][0]["text"]
        body = {"messages": [{"role": "user", "content": "once"}], "max_tokens": 8}
        told = await client.chat_completion({"json": body | {"session_id": "t"}, "headers": {}})
        assert told["choices"][0]["message"]["content"]
        assert list(g.desk.arrivals._homes) == ["t"]


async def test_the_entry_puts_a_gateway_before_the_engines_that_skyrl_started() -> None:
    fakes = [FakeVllm(), FakeVllm()]
    async with fakes[0] as one, fakes[1] as two:

        class Experiment(BasePPOExp):
            def __init__(self) -> None:
                pass

            def _get_new_inference_client(self) -> Any:
                return RemoteInferenceClient("http://127.0.0.1:9", [one, two], 1, "fake-model")

        made = await asyncio.to_thread(steered(Experiment)().get_inference_client)
        assert made.server_urls == [f"{made.proxy_url}/engines/engine-{n}" for n in range(2)]
        async with made as client:
            output = await client.generate(batch())
            assert [len(tokens) > 0 for tokens in output["response_ids"]] == [True] * len(PROMPTS)
            await client.pause_generation()
            assert [fake.engine.paused for fake in fakes] == [True, True]
            await client.resume_generation()


async def test_a_gateway_that_was_put_there_can_be_stopped() -> None:
    async with FakeVllm() as url:
        client = RemoteInferenceClient("http://127.0.0.1:9", [url], 1, "fake-model")
        sidecar = await asyncio.to_thread(attach, client)
        await asyncio.to_thread(sidecar.stop)
        assert sidecar.process.returncode == 0
