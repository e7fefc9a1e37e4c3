"""The control plane over two real servers: pauses, new weights in mid-request, aborts, errors."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.gateway import Gateway, gateway
from support.tiny_chat_model import tiny_chat_model
from support.vllm_server import vllm_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPT = {"model": "tiny", "prompt": "The cat sees", "temperature": 0, "ignore_eos": True}
TOKENS = {"model": "tiny", "token_ids": [40, 50, 60]}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two policies of one architecture."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return [tiny_chat_model(folder / str(seed), seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def engines(
    checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    with vllm_servers(checkpoints[0], tmp_path_factory.mktemp("vllm"), count=2) as servers:
        yield [server.url for server in servers]


@pytest.fixture
async def served(engines: list[str]) -> AsyncIterator[Gateway]:
    async with gateway(engines) as served:
        yield served


async def direct(url: str, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.post(url + path, json=body) as response:
        return response.status, await response.json()


async def written(g: Gateway, tokens: int) -> None:
    """Returns once each running sample has so many."""
    while not g.running() or any(e.generated_tokens < tokens for e in g.running()):
        await asyncio.sleep(0.002)


async def test_new_weights_reach_requests_under_way_and_all_that_follow(
    served: Gateway, engines: list[str], checkpoints: list[Path]
) -> None:
    short = {**PROMPT, "max_tokens": 40}
    # the first requests of an engine are slow: what is timed below must not be among them
    warm = await asyncio.gather(*(served.post("/v1/completions", short) for _ in range(4)))
    before = warm[0][1]["choices"][0]["text"]
    sampling = {"max_tokens": 900, "temperature": 0, "ignore_eos": True}
    path, body = "/inference/v1/generate", {**TOKENS, "sampling_params": sampling}
    calls = [asyncio.create_task(served.post(path, body)) for _ in range(4)]
    await written(served, 1)
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoints[1])}}
    for step, told in (
        ("/pause?mode=keep", None),
        ("/collective_rpc", reload),
        ("/update_weight_version", {"new_version": "1"}),
        ("/reset_prefix_cache", None),
        ("/resume", None),
    ):
        assert (await served.post(step, told))[0] == 200, step
    assert served.desk.pace.weight_version == 1
    for status, answer in await asyncio.gather(*calls):
        assert status == 200
        (choice,) = answer["choices"]
        assert len(choice["token_ids"]) == 900
        spans = choice["weight_versions"]
        assert [span["version"] for span in spans] == ["default", "1"]
        assert (spans[0]["end"], spans[1]["end"]) == (spans[1]["start"], 900)
    after = (await served.post("/v1/completions", short))[1]["choices"][0]["text"]
    assert after != before
    for url in engines:
        assert (await direct(url, "/v1/completions", short))[1]["choices"][0]["text"] == after


async def test_a_pause_that_aborts_returns_what_was_written(served: Gateway) -> None:
    body = {**PROMPT, "max_tokens": 900}
    calls = [asyncio.create_task(served.post("/v1/completions", body)) for _ in range(4)]
    await written(served, 1)
    assert (await served.post("/pause", None))[0] == 200
    assert (await served.post("/resume", None))[0] == 200
    ends = []
    for status, answer in await asyncio.gather(*calls):
        assert status == 200
        ends.append(answer["choices"][0]["finish_reason"])
        # on a busy machine one engine may have finished before the other had begun
        assert ends[-1] == ("abort" if answer["usage"]["completion_tokens"] < 900 else "length")
    assert "abort" in ends


async def test_a_request_is_aborted_by_the_name_its_client_knows(served: Gateway) -> None:
    body = {**PROMPT, "max_tokens": 900}
    named = asyncio.create_task(served.post("/v1/completions", body, X_Request_Id="mine"))
    other = asyncio.create_task(served.post("/v1/completions", body))
    await written(served, 1)
    assert (await served.post("/abort_requests", {"request_ids": ["cmpl-mine"]}))[0] == 200
    assert (await named)[1]["choices"][0]["finish_reason"] == "abort"
    assert (await other)[1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause?mode=never", None),
        ("/update_weight_version", {}),
        ("/collective_rpc", {"method": "no_such_method"}),
        ("/collective_rpc", {}),
        ("/weight_checker", {"action": "compare"}),
        ("/start_weight_update", None),
        ("/tokenize", {"model": "tiny"}),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"}),
    ],
)
async def test_errors_are_the_engines_own(
    served: Gateway, engines: list[str], path: str, body: Any
) -> None:
    expected = await direct(engines[0], path, body)
    assert expected[0] >= 400
    assert await served.post(path, body) == expected
    assert not served.desk.paused


async def test_two_engines_look_like_one_with_two_workers(served: Gateway) -> None:
    async def get(path: str) -> Any:
        async with served.client.get(served.url + path) as response:
            assert response.status == 200, path
            return await response.json()

    assert await get("/get_world_size") == {"world_size": 2}
    assert await get("/engines/engine-1/get_world_size") == {"world_size": 1}
    assert (await get("/is_paused"), await get("/is_sleeping")) == (
        {"is_paused": False},
        {"is_sleeping": False},
    )
    assert [card["id"] for card in (await get("/v1/models"))["data"]] == ["tiny"]
    status, answer = await served.post("/weight_checker", {"action": "checksum"})
    assert (status, len(answer["checksums"]) > 10) == (200, True)
    status, answer = await served.post("/tokenize", {"model": "tiny", "prompt": "The cat"})
    told = await served.post("/detokenize", {"model": "tiny", "tokens": answer["tokens"]})
    assert told == (200, {"prompt": "The cat"})
