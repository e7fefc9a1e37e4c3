"""A fake engine for measurements, that leaves the machine to what is measured.

    python tests/support/fast_vllm.py --port 0 --token-s 0.005

`FakeVllm` with a shortcut: plain completions that run to their length are answered from prepared
bytes, at the same times and in the same pieces.  In aiohttp's hands one takes .43 ms of processor
time, streamed .74, which on a small machine is more than what stands between it and its client.
All else is the fake's as it is; its queue and its knobs for failures do not reach the shortcut.
"""

import asyncio
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import msgspec
from aiohttp import web

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fake_engine import Stream
from support.fake_vllm import FakeVllm, serve_by
from support.fake_wire import CompletionForm

UNDERSTOOD = {
    "model", "prompt", "max_tokens", "ignore_eos", "stream", "stream_options", "stream_interval",
    "return_token_ids", "request_id",
}  # fmt: skip
BEGINNING = b"POST /v1/completions HTTP/1.1\r\n"
Plan = list[tuple[int, bytes]]
"""Bytes to be written, by the number of tokens that must be there."""

_JSON = msgspec.json.Encoder()


def plan_of(body: dict[str, Any], model: str) -> tuple[list[int], Plan] | None:
    """Prompt and plan; None: the fake itself shall answer."""
    prompt, most = body.get("prompt"), body.get("max_tokens")
    if (
        not body.keys() <= UNDERSTOOD
        or body.get("ignore_eos") is not True
        or body.get("model", model) != model
        or not isinstance(prompt, list)
        or not all(type(token) is int for token in prompt)
        or type(most) is not int
    ):
        return None
    options = body.get("stream_options") or {}
    interval = body.get("stream_interval", 1) if body.get("stream") else 0
    usage, ids = bool(options.get("include_usage")), bool(body.get("return_token_ids"))
    return prompt, _planned(tuple(prompt), most, interval, usage, ids, model)


@lru_cache(maxsize=1024)
def _planned(
    prompt: tuple[int, ...], max_tokens: int, interval: int, usage: bool, ids: bool, model: str
) -> Plan:
    stream = Stream(list(prompt), max_tokens, "", interval=max(interval, 1), ignore_eos=True)
    stream.whole = interval == 0
    body = {"return_token_ids": ids, "stream_options": {"include_usage": usage}}
    form = CompletionForm(body, "cmpl-fast", model, 0, [stream])
    stream.begin(0.0)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: "
    if stream.whole:
        stream.grow(max_tokens, "0")
        told = _JSON.encode(form.whole([stream.piece()]))
        length = f"application/json\r\nContent-Length: {len(told)}\r\n\r\n".encode()
        return [(max_tokens, head + length + told)]
    plan: Plan = []
    head += b"text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    while stream.finish_reason is None:
        stream.grow(stream.boundary, "0")
        plan.append((len(stream.tokens), head + _event(form.chunk(stream, stream.piece()))))
        head = b""
    last = _event(form.closing()) if usage else b""
    plan.append((max_tokens, last + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"))
    return plan


def _event(told: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + _JSON.encode(told) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Shortcut(asyncio.Protocol):
    """One connection; the fake's, if something comes that is not plain."""

    def __init__(self, fake: FakeVllm, all_: "Shortcuts") -> None:
        self._fake, self._all = fake, all_
        self.transport: asyncio.Transport | None = None
        self._data = b""
        self._stream: Stream | None = None
        self._plan: Plan = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._all.own.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._all.own.discard(self)
        self._end()

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self._data += data
        if not self._data.startswith(BEGINNING):
            self._hand_over()
            return
        head, found, body = self._data.partition(b"\r\n\r\n")
        at = head.lower().find(b"content-length:")
        if not found or at < 0 or len(body) < int(head[at + 15 :].split(b"\r", 1)[0]):
            return
        planned = plan_of(msgspec.json.decode(body), self._fake.model)
        if planned is None:
            self._hand_over()
            return
        self._data, (prompt, plan) = b"", planned
        self._begin(prompt, plan)

    def _begin(self, prompt: list[int], plan: Plan) -> None:
        engine = self._fake.engine
        self._plan, self._stream = list(plan), Stream(prompt, plan[-1][0], "", ignore_eos=True)
        self._stream.whole = True  # for the counters: nothing but the clock shows how far it is
        engine.running.append(self._stream)
        self._started_s = asyncio.get_running_loop().time() + engine.prefill_s
        engine.begun(self._stream, engine.clock() + engine.prefill_s)
        self._write()

    def _write(self) -> None:
        """What is due; then wait for the next."""
        loop, token_s = asyncio.get_running_loop(), self._fake.engine.token_s
        while self._plan:
            tokens, told = self._plan[0]
            due_s = self._started_s + tokens * token_s
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self._write)
                return
            del self._plan[0]
            assert self.transport is not None
            self.transport.write(told)
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            self._fake.engine.count_due(stream, stream.max_tokens)
            self._fake.engine.leave(stream)

    def _hand_over(self) -> None:
        transport, handler = self.transport, self._all.behind()
        assert transport is not None
        self._all.own.discard(self)
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(self._data)


class Shortcuts:
    """Makes one for each connection."""

    def __init__(self, fake: FakeVllm, behind: web.Server) -> None:
        self._fake, self.behind = fake, behind
        self.own: set[Shortcut] = set()

    def __call__(self) -> Shortcut:
        return Shortcut(self._fake, self)

    @property
    def connections(self) -> list[Any]:
        """The fake's and our own."""
        return [*self.behind.connections, *self.own]


class _Runner(web.AppRunner):
    def __init__(self, fake: FakeVllm, app: web.Application) -> None:
        super().__init__(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        self._fake = fake
        self._shortcuts: Shortcuts | None = None

    @property
    def server(self) -> web.Server | None:
        behind = super().server
        if behind is None:
            return None
        if self._shortcuts is None:
            self._shortcuts = Shortcuts(self._fake, behind)
        return cast(web.Server, self._shortcuts)


class FastVllm(FakeVllm):
    """See the module's docstring."""

    def runner_of(self, app: web.Application) -> web.AppRunner:
        """Connections begin with the shortcut."""
        return _Runner(self, app)


if __name__ == "__main__":
    serve_by(FastVllm, sys.argv[1:])
