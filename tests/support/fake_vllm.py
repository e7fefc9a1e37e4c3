"""A server that speaks vLLM 0.32's HTTP API over a deterministic model, and fails when told to.

    fake = FakeVllm(token_s=0.002)
    async with fake as url: ...

or as a process of its own, which prints its URL first:

    python tests/support/fake_vllm.py --port 0 --token-s 0.002

There the knobs are turned by `POST /fake {"stalled": true}`.  Sampling is ignored: the answer is
`support.fake_model.reference`, so what was lost or doubled on the way shows.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support import fake_metrics
from support.fake_control import ControlRoutes, answer, json_of
from support.fake_engine import Engine
from support.fake_model import EOS_SHARE, VOCAB, decode, encode, reference, text_of
from support.fake_tokens import TokenRoutes, cut
from support.fake_wire import BadRequestError, error_body

__all__ = ["VOCAB", "FakeVllm", "decode", "encode", "reference", "text_of"]

STRANGE = (TypeError, ValueError, OverflowError, RecursionError, AttributeError, LookupError)
"""What bodies of the wrong form bring about; vLLM too answers most of them with 400."""


@dataclass(eq=False)
class FakeVllm:
    """One engine; all fields but the first eight may be changed while it runs."""

    port: int = 0
    token_s: float = 0.0
    """Per token of a sequence."""
    prefill_s: float = 0.0
    max_num_seqs: int = 256
    max_model_len: int = 32768
    model: str = "fake-model"
    eos_share: float = EOS_SHARE
    api_key: str = ""
    scale_out: bool = True
    """Tokens in, tokens out, and its abort route are there."""
    dev: bool = True
    """The trainer's routes are there."""
    areal: bool = False
    """It is AReaL's server: it has routes of its own for pauses and weights."""
    metrics: bool = True
    """It shows a page to Prometheus."""
    metric_style: fake_metrics.Style = "vllm:"
    blocks: int = 4096
    block_size: int = 16
    fails: int = 0
    """Requests still to be answered 500."""
    overloaded: bool = False
    """Answers 503."""
    drops: list[int] = field(default_factory=list)
    """The next requests lose their connection after so many tokens, one entry each."""
    errors: list[int] = field(default_factory=list)
    """The next streams break with an error event after so many tokens."""
    ill: bool = False
    """Its health check answers 503, as when the engine behind the server has died."""
    closes_kept: bool = False
    """Closes a kept connection when a second request comes on it, unanswered."""
    hung: bool = False
    """Takes requests and answers nothing at all, not even health."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """(path, body) of the last requests for tokens."""
    keep_asked: int = 10_000
    aborts: list[list[str]] = field(default_factory=list)
    updates: list[tuple[str, Any]] = field(default_factory=list)
    """(path, body) of requests for new weights."""
    engine: Engine = field(init=False)
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        self.engine = Engine(
            token_s=self.token_s,
            prefill_s=self.prefill_s,
            max_num_seqs=self.max_num_seqs,
            eos_share=self.eos_share,
        )
        self._runner: web.AppRunner | None = None
        self._release = asyncio.Event()
        self._used: set[Any] = set()

    @property
    def url(self) -> str:
        """Where it listens; known once it is up."""
        return f"http://{self.host}:{self.port}"

    @property
    def stalled(self) -> bool:
        """It takes requests and writes nothing, while health is good."""
        return self.engine.stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self.engine.freeze(stalled=stalled)

    def hurry(self) -> None:
        """From now on everything is written at once."""
        self.engine.token_s = 0.0

    @property
    def running(self) -> int:
        """Sequences being written."""
        return len(self.engine.running)

    async def __aenter__(self) -> str:
        await self.up()
        return self.url

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen (again), on the same port as before."""
        app = web.Application(client_max_size=1 << 26, middlewares=[self._errors])
        app.add_routes(TokenRoutes(self).routes())
        app.add_routes(ControlRoutes(self).routes())
        app.router.add_post("/fake", self._knobs)
        self._runner = self.runner_of(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, backlog=4096, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def runner_of(self, app: web.Application) -> web.AppRunner:
        """What serves it."""
        return web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)

    async def down(self) -> None:
        """Die: open connections are reset, new ones refused."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        if runner.server is not None:
            for connection in list(runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
        self._release.set()
        await runner.cleanup()
        self._release = asyncio.Event()

    @web.middleware
    async def _errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.hung and request.path != "/fake":
            await self._release.wait()
        if self.closes_kept and request.protocol in self._used:
            await cut(request)
        if self.closes_kept:
            self._used.add(request.protocol)
        guarded = bool(self.api_key) and request.path.startswith(("/v1", "/inference"))
        if guarded and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return answer({"error": "Unauthorized"}, status=401)
        try:
            told: web.StreamResponse = await handler(request)
        except ConnectionError:
            await cut(request)  # the client has left; nobody is to be told
            raise
        except BadRequestError as error:
            return answer(error.body, status=error.status)
        except STRANGE as error:
            return answer(error_body(str(error), "BadRequestError", 400), status=400)
        except web.HTTPException as error:
            body = error_body(error.reason, error.reason, error.status)
            return answer(body, status=error.status)
        return told

    async def _knobs(self, request: web.Request) -> web.Response:
        for name, value in (await json_of(request)).items():
            if name == "down":
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, self.down())
            elif name in ("token_s", "prefill_s", "max_num_seqs", "weight_version"):
                setattr(self.engine, name, value)
            else:
                setattr(self, name, value)
        return answer({})


async def _serve(fake: FakeVllm) -> None:
    async with fake as url:
        print(url, flush=True)  # noqa: T201
        await asyncio.Event().wait()


def serve_by(kind: type[FakeVllm], arguments: list[str]) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("port", 0),
        ("token-s", 0.0),
        ("prefill-s", 0.0),
        ("max-num-seqs", 256),
        ("max-model-len", 32768),
        ("eos-share", EOS_SHARE),
        ("model", "fake-model"),
        ("keep-asked", 0),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--knobs", type=json.loads, default={}, help="further fields, as JSON")
    told = vars(parser.parse_args(arguments))
    knobs = told.pop("knobs")
    try:
        asyncio.run(_serve(kind(**told, **knobs)))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    serve_by(FakeVllm, sys.argv[1:])
