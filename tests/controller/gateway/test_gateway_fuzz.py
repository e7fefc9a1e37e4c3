"""Requests that nobody would send: each gets an answer, none of them a 500, and nothing is left."""

import asyncio
import json
import random
from typing import Any

import aiohttp
import pytest
from support.gateway import Gateway, gateway

PATHS = [
    "/v1/completions",
    "/v1/chat/completions",
    "/inference/v1/generate",
    "/v1/models",
    "/v1/embeddings",
    "/pause",
    "/resume",
    "/abort_requests",
    "/metrics",
    "/dashboard/state",
    "/tokenize",
    "/health",
    "/engines/engine-0/health",
    "/engines/nobody/health",
    "/",
]
FIELDS = [
    "prompt", "messages", "token_ids", "sampling_params", "max_tokens", "n", "stream", "logprobs",
    "top_logprobs", "stop", "seed", "temperature", "echo", "best_of", "steersman", "session_id",
    "request_id", "stream_options", "ignore_eos", "min_tokens", "stop_token_ids", "model",
    "return_token_ids", "presence_penalty", "tools", "response_format", "\ud800"[:0] + "x" * 300,
]  # fmt: skip
HEADERS = [
    "X-Session-ID",
    "X-Request-Id",
    "Idempotency-Key",
    "X-Steersman-Step",
    "X-Steersman-Group",
    "X-Stainless-Retry-Count",
    "Content-Type",
]
REQUESTS = 5000


class Strange:
    """Draws requests."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        """Any JSON value, mostly one of a wrong type, sometimes a right one."""
        draw = self.rng
        simple = [
            lambda: None,
            lambda: draw.choice([True, False]),
            lambda: draw.choice([0, 1, 2, 5, -1, 10**6, 2**63, -(2**70)]),
            lambda: draw.choice([0.0, 0.7, 1e308, -1.5]),
            lambda: draw.choice(["", "a", "the end", "\x00", "é€😀", "x" * 5000]),
            lambda: [draw.randrange(300) for _ in range(draw.randrange(6))],
        ]
        nested = [
            lambda: [self.value(depth + 1) for _ in range(draw.randrange(4))],
            lambda: {draw.choice(FIELDS): self.value(depth + 1) for _ in range(draw.randrange(4))},
            lambda: [{"role": "user", "content": self.value(depth + 1)}],
        ]
        return draw.choice(simple + (nested if depth < 3 else []))()

    def body(self) -> bytes:
        """Of a request."""
        draw, kind = self.rng, self.rng.random()
        if kind < 0.05:
            return draw.randbytes(draw.randrange(40))
        body: dict[str, Any] = {"model": "fake-model"}
        if kind < 0.6:  # nearly right
            body |= {
                "prompt": [5, 6],
                "max_tokens": 5,
                "messages": [{"role": "user", "content": "a"}],
            }
            body |= {"token_ids": [5, 6], "sampling_params": {"max_tokens": 4}}
        for _ in range(draw.randrange(4)):
            body[draw.choice(FIELDS)] = self.value()
        text = json.dumps(body)
        if kind > 0.97:
            text = text[: draw.randrange(len(text))]
        if 0.6 < kind < 0.61:
            text = "[" * 20_000
        return text.encode()

    def headers(self) -> dict[str, str]:
        """Some of those that mean something, rightly or wrongly filled."""
        draw = self.rng
        values = ["1", "a", "", "-1", "x" * 300, "application/json", "text/plain", "true"]
        return {draw.choice(HEADERS): draw.choice(values) for _ in range(draw.randrange(3))}


async def asked(gate: Gateway, strange: Strange) -> tuple[int, str, bytes, bytes]:
    """Send one; its status, what it was, and what came back."""
    draw = strange.rng
    method = draw.choices(["POST", "GET", "PUT", "DELETE", "OPTIONS"], [20, 3, 1, 1, 1])[0]
    path, body = draw.choice(PATHS), strange.body()
    timeout = aiohttp.ClientTimeout(total=20)
    try:
        async with gate.client.request(
            method, gate.url + path, data=body, headers=strange.headers(), timeout=timeout
        ) as response:
            data = await response.read()
            return response.status, f"{method} {path}", body, data
    except aiohttp.ServerDisconnectedError:
        return 0, f"{method} {path}", body, b"disconnected"


@pytest.mark.timeout(280)
async def test_5000_strange_requests_get_no_500_and_leave_nothing() -> None:
    async with gateway(2, "gateway.request_timeout_s=15") as gate:
        for batch in range(REQUESTS // 50):
            strange = [Strange(1000 * batch + i) for i in range(50)]
            for status, what, body, data in await asyncio.gather(
                *(asked(gate, one) for one in strange)
            ):
                assert 0 < status < 500 or status in (501, 502, 503), (what, body[:300], data[:300])
            gate.desk.resume()
        while gate.desk.questions:
            await asyncio.sleep(0.01)
        status, answer = await gate.post(
            "/v1/completions", {"model": "fake-model", "prompt": [5], "max_tokens": 3}
        )
        assert status == 200, answer
        assert not gate.desk.ledger.executions
        assert all(fake.running == 0 for fake in gate.fakes)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not [name for name in names if "request" in name]
