"""Replicas on Ray behind the gateway: tokens in, tokens out, through moves and deaths."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from support.fake_fleet import EOS, FakeFleet, reference

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.gateway.app import Runner, build_app
from steersman.controller.gateway.desk import Desk
from steersman.mechanisms.execution import ToReplica
from steersman.mechanisms.http_vllm.fleet import HttpFleet
from steersman.mechanisms.ray_vllm.served import ServedRayFleet

PROMPT = [5, 7, 11]


@asynccontextmanager
async def gateway(inner: FakeFleet) -> AsyncIterator[tuple[Desk, aiohttp.ClientSession]]:
    config = load_config(None, ["placement.name=sticky_least_inflight"], {})
    fleet = cast(HttpFleet, ServedRayFleet(inner, "head:6379"))
    async with Desk(fleet, Controller.from_config(config), config.gateway) as desk:
        runner = Runner(build_app(desk, config.gateway))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with aiohttp.ClientSession(url) as client:
                yield desk, client
        finally:
            await runner.cleanup()


async def generate(
    client: aiohttp.ClientSession, sampling: dict[str, Any], **more: Any
) -> tuple[int, Any]:
    body = {"token_ids": PROMPT, "sampling_params": sampling, **more}
    async with client.post("/inference/v1/generate", json=body) as response:
        return response.status, await response.json()


async def running(inner: FakeFleet) -> None:
    """Returns once something runs."""
    while not any(inner.stats(info.name).running for info in inner.replicas):
        await asyncio.sleep(0)


async def test_a_request_is_answered_with_tokens_logprobs_and_versions() -> None:
    inner = FakeFleet()
    inner.weight_version = 4
    async with gateway(inner) as (_, client):
        work = asyncio.create_task(inner.run())
        expected = reference(PROMPT, 12)
        sampling = {"max_tokens": 12, "logprobs": 0, "stop_token_ids": [EOS], "top_k": -1}
        status, answer = await generate(client, sampling, model="ray")
        work.cancel()
    (choice,) = answer["choices"]
    assert (status, choice["token_ids"]) == (200, expected)
    assert choice["finish_reason"] == ("stop" if expected[-1] == EOS else "length")
    told = [(entry["token_id"], entry["logprob"]) for entry in choice["logprobs"]["content"]]
    assert told == [(token, -float(token)) for token in expected]
    assert choice["weight_versions"] == [{"version": "4", "start": 0, "end": len(expected)}]
    assert answer["usage"]["completion_tokens"] == len(expected)
    assert inner.started[0].payload is None


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_move_and_a_death_lose_and_double_nothing(streamed: bool) -> None:
    inner = FakeFleet(3)
    async with gateway(inner) as (desk, client):
        body = {
            "token_ids": PROMPT,
            "sampling_params": {"max_tokens": 40, "ignore_eos": True},
            "stream": streamed,
        }
        call = asyncio.create_task(client.post("/inference/v1/generate", json=body))
        await running(inner)
        (execution,) = desk.ledger.executions.values()
        first = str(execution.replica)
        second, _ = [info.name for info in inner.replicas if info.name != first]
        inner.advance(first, 5)
        assert execution.leave(ToReplica(second), "the test moves it")
        await asyncio.sleep(0)
        inner.confirm(first)
        assert execution.replica == second
        inner.weight_version = 1
        inner.advance(second, 7)
        inner.kill(second)
        work = asyncio.create_task(inner.run())
        async with await call as response:
            text = await response.text()
        work.cancel()
    if streamed:
        events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        pieces = [event["choices"][0]["token_ids"] for event in events if event["choices"]]
        tokens = [token for piece in pieces for token in piece]
    else:
        (choice,) = json.loads(text)["choices"]
        tokens = choice["token_ids"]
        spans = [(span["start"], span["end"]) for span in choice["weight_versions"]]
        assert spans == [(0, 5), (5, len(tokens))]
    # the model of this fleet does end its texts: nothing here tells it not to
    assert tokens == reference(PROMPT, 40)


async def test_what_died_after_its_last_token_is_not_written_on() -> None:
    inner = FakeFleet()
    prompt = next([n, n + 1] for n in range(50) if reference([n, n + 1], 30)[-1] == EOS)
    expected = reference(prompt, 30)
    async with gateway(inner) as (_, client):
        sampling = {"max_tokens": 30, "stop_token_ids": [EOS]}
        body = {"token_ids": prompt, "sampling_params": sampling}
        call = asyncio.create_task(client.post("/inference/v1/generate", json=body))
        await running(inner)
        (name,) = [i.name for i in inner.replicas if inner.stats(i.name).running]
        inner.advance(name, 30)
        inner.kill(name)
        async with await call as response:
            (choice,) = (await response.json())["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == (expected, "stop")


@pytest.mark.parametrize(
    ("sampling", "more", "message"),
    [
        ({"min_p": 0.1}, {}, "unknown field `min_p`"),
        ({"logprobs": 2}, {}, "not of others"),
        ({"stop": ["a"]}, {}, "unknown field `stop`"),
        ({}, {"output_mode": "text"}, "write token ids only"),
        ({}, {"features": {}}, "only /inference/v1/generate is served, with token ids"),
    ],
)
async def test_what_ray_replicas_cannot_do_is_refused_with_what_they_can(
    sampling: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    inner = FakeFleet()
    async with gateway(inner) as (_, client):
        status, answer = await generate(client, {"max_tokens": 5, **sampling}, **more)
    assert status == 400
    assert message in answer["error"]["message"]
    assert not inner.started


async def test_text_is_refused() -> None:
    async with gateway(FakeFleet()) as (_, client):
        for path, body in (
            ("/v1/completions", {"prompt": "text"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
            ("/v1/embeddings", {}),
        ):
            async with client.post(path, json={"model": "ray", **body}) as response:
                assert response.status == 400
                assert "no tokenizer" in (await response.json())["error"]["message"]


async def test_control_says_that_it_goes_over_ray_and_takes_the_version() -> None:
    async with gateway(FakeFleet()) as (desk, client):
        async with client.post("/pause") as response:
            assert response.status == 501
            assert "controlled over Ray" in await response.text()
        assert not desk.paused
        async with client.post("/update_weight_version", json={"new_version": "9"}) as response:
            assert response.status == 200
        assert desk.pace.weight_version == 9
        async with client.get("/v1/models") as response:
            assert (await response.json())["data"][0]["max_model_len"] == 512
        async with client.get("/health") as response:
            assert response.status == 200
