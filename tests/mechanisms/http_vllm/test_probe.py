"""What is found out about an engine that does not tell its configuration."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from steersman.mechanisms.http_vllm.probe import probe
from steersman.mechanisms.http_vllm.settings import HttpSettings
from steersman.mechanisms.http_vllm.wire import Wire


async def reasons(chat: tuple[int, dict[str, Any]]) -> bool:
    """Whether it is taken for an engine that reasons, if it answers a chat like this."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def answer(request: web.Request) -> web.Response:
        assert (await request.json())["max_tokens"] == 1
        return web.json_response(chat[1], status=chat[0])

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server, Wire(HttpSettings()) as wire:
        return (await probe(wire, URL(str(server.make_url("/"))))).abilities.reasoning_parser


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, {"usage": {"completion_tokens_details": {"reasoning_tokens": 0}}}, True),
        (200, {"usage": {"completion_tokens_details": None}}, False),
        (200, {"usage": {}}, False),
        (400, {"error": {"message": "it has no chat template"}}, False),
    ],
)
async def test_an_engine_that_counts_reasoning_tokens_splits_its_chats(
    status: int, body: dict[str, Any], found: bool
) -> None:
    assert await reasons((status, body)) is found
