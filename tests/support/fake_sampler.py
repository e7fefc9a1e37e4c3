"""A server that samples: an engine, or a gateway, as far as a trainer's adapter speaks to them.

`FakeVllm` writes one text for one prompt; here samples differ, as groups must, and follow from the
request's seed.  As a gateway (`steers=True`) it tells of each sample what a gateway tells.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

WORDS = (7, 8, 9)
"""What samples consist of; 9 ends them."""


@dataclass(eq=False)
class FakeSampler:
    """Knobs may be turned while it runs."""

    steers: bool = False
    developer: bool = True
    answer_s: float = 0.0
    """Before samples are answered."""
    hung: bool = False
    """Takes requests and answers nothing, not even health."""
    ill: bool = False
    """Its health check fails."""
    refuses: int = 0
    """Status that requests for samples get; 0: they are answered."""
    busy: int = 0
    """Requests still to be answered 429."""
    forgets: bool = False
    """Does not take the version it is told."""
    skew: float = 0.0
    """Nats by which it computes otherwise than the others."""
    aborts: int = 0
    """Requests still to be answered by what a pause left of them."""
    token: str = ""
    """That requests for samples must carry."""
    weight: float = 1.0
    """Of each sample, as a gateway tells it."""
    names: str = ""
    """Engines that a gateway says it reached; "": it does not say."""
    weight_version: str = "default"
    paused: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of requests for samples."""
    called: list[str] = field(default_factory=list)
    """Control routes, in order."""
    loaded: list[list[str]] = field(default_factory=list)
    """Names of the files that were loaded, push by push."""
    rewards: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "FakeSampler":
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen, again on the same port."""
        app = web.Application(middlewares=[self._hang])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/steersman/rewards", self._rewards)
        if self.developer:
            app.router.add_get("/get_world_size", self._world_size)
            app.router.add_get("/weight_info", self._weight_info)
            for path in ("/pause", "/resume", "/collective_rpc", "/update_weight_version"):
                app.router.add_post(path, self._control)
        self._release = asyncio.Event()
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def down(self) -> None:
        """As killed: connections are reset, new ones refused."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        for connection in list(runner.server.connections) if runner.server is not None else []:
            if connection.transport is not None:
                connection.transport.abort()
        self._release.set()
        await runner.cleanup()

    @web.middleware
    async def _hang(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.hung:
            await self._release.wait()
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.ill else 200)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 64}]})

    async def _world_size(self, request: web.Request) -> web.Response:
        return web.json_response({"world_size": 1})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weight_version})

    async def _rewards(self, request: web.Request) -> web.Response:
        self.rewards += (await request.json())["rewards"]
        return web.json_response({})

    async def _control(self, request: web.Request) -> web.Response:
        self.called.append(request.path)
        told = msgspec.json.decode(await request.read() or b"{}")
        if request.path == "/pause":
            self.paused = True
        elif request.path == "/resume":
            self.paused = False
        elif request.path == "/update_weight_version" and not self.forgets:
            self.weight_version = told["new_version"]
        elif request.path == "/collective_rpc":
            folder = Path(told["kwargs"]["weights_path"])
            self.loaded.append(sorted(file.name for file in folder.iterdir()))
            headers = {"X-Steersman-Engines": self.names} if self.names else {}
            return web.json_response({"results": [None]}, headers=headers)
        return web.json_response({"status": "ok"})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "prompt_logprobs" in body:
            places = [{str(t): {"logprob": -0.1 * t - self.skew}} for t in body["prompt"][1:]]
            return web.json_response({"choices": [{"prompt_logprobs": [None, *places]}]})
        self.asked.append(body)
        await asyncio.sleep(self.answer_s)
        if self.busy:
            self.busy -= 1
            return web.Response(status=429, headers={"Retry-After": "0"})
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "no"}, status=401)
        if self.refuses:
            error = {"error": {"message": "it will not"}}
            return web.json_response(error, status=self.refuses)
        seed, n = body["seed"], body["n"]
        samples = [self._sample(seed + i, body) for i in range(n)]
        if self.aborts:
            self.aborts -= 1
            samples[-1]["finish_reason"] = "abort"
        answer: dict[str, Any] = {"choices": samples}
        if self.steers:
            number = len(self.asked) * 100
            answer["steersman"] = {"samples": [self._told(number + i) for i in range(n)]}
        return web.json_response(answer)

    def _sample(self, seed: int, body: dict[str, Any]) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        tokens = [int(rng.choice(WORDS[:2])) for _ in range(int(rng.integers(1, 5)))]
        tokens = [*tokens, WORDS[2]][: body["max_tokens"]]
        return {
            "token_ids": tokens,
            "logprobs": {"token_logprobs": [-0.5] * len(tokens)},
            "finish_reason": "stop" if tokens[-1] == WORDS[2] else "length",
        }

    def _told(self, number: int) -> dict[str, Any]:
        version = int(self.weight_version) if self.weight_version.isdecimal() else 0
        return {
            "trajectory_id": number,
            "correctness": "exact",
            "weight": self.weight,
            "moves": 1,
            "segments": [{"weight_version": version, "engine": "engine-0", "start": 0, "end": 1}],
        }
