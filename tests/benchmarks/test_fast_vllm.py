"""The engine of the gateway's benchmark answers as the fake does that the tests believe."""

import json
import re
from typing import Any

import aiohttp
import pytest
from support.fake_vllm import FakeVllm
from support.fast_vllm import FastVllm

BODY = {"model": "fake-model", "prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True}


async def told(fake: FakeVllm, body: dict[str, Any]) -> tuple[list[Any], str]:
    """The events of an answer without what differs from one call to the next, and the counters."""
    async with fake as url, aiohttp.ClientSession() as session:
        async with session.post(url + "/v1/completions", json=body) as response:
            assert response.status == 200
            text = await response.text()
        async with session.get(url + "/metrics") as response:
            page = await response.text()
    events = [json.loads(part) for part in re.findall(r"^(?:data: )?(\{.*\})$", text, re.MULTILINE)]
    for event in events:
        del event["id"], event["created"]
    return [*events, text.count("[DONE]")], "\n".join(re.findall(r".*_tokens_total\{.*", page))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"return_token_ids": True},
        {"stream": True},
        {"stream": True, "stream_interval": 64, "return_token_ids": True, "request_id": "r"},
        {"stream": True, "stream_interval": 64, "stream_options": {"include_usage": True}},
    ],
)
async def test_its_prepared_answers_are_the_fake_s(more: dict[str, Any]) -> None:
    assert await told(FastVllm(), BODY | more) == await told(FakeVllm(), BODY | more)


async def test_what_it_has_not_prepared_is_the_fake_s_own() -> None:
    for more in ({"seed": 3}, {"ignore_eos": False}, {"prompt": "a text"}):
        assert await told(FastVllm(), BODY | more) == await told(FakeVllm(), BODY | more)
