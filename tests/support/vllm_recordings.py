"""What real vLLM servers wrote, kept: forms and dialects are tested on it without a server.

An exchange is one request and the events of its answer.  To record anew (two minutes):

    PYTHONPATH=tests python tests/support/vllm_recordings.py
"""

import asyncio
import gzip
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from support.form_client import Cut, FormClient, Wire, answer_of
from support.vllm_cases import CUT, UNDERSTOOD, Case

FILE = Path(__file__).parents[1] / "data" / "vllm_recordings.json.gz"

RECORDED_CUTS = {
    "a text": [2, 33],
    "alternatives": [2, 33],
    "ids for texts": [33],
    "long stop strings": [14],
    "a stop string with a character of many tokens": [31],
    "a stop string kept": [33],
    "a short stop string, not too early": [21],
    "chat: a message": [3],
    "chat: alternatives": [41],
    "chat: ids for texts": [3],
    "chat: stop strings": [20],
    "generate: alternatives": [20],
    "generate: stop": [30],
}
"""Cases and the numbers of tokens at which they were cut: by closing, and streamed by aborting."""
RECORDED_WHOLE = (
    "token ids",
    "two prompts of tokens with two samples each",
    "a stop string kept",
    "chat: log-probabilities",
    "chat: three samples",
    "generate: prompt told",
    "generate: text",
)


@dataclass
class Recording:
    """One case: what an engine answered directly, and what it wrote to a form and its dialect."""

    case: str
    cut: list[Any]
    streamed: bool
    direct: Any
    """JSON of the answer, or the list of its events."""
    exchanges: list[tuple[str, Any, list[str]]] = field(default_factory=list)
    """Path and body of each request, and the payloads of the answer's events."""


class Player(Wire):
    """Answers requests with what was recorded, and fails where they are others."""

    def __init__(self, recording: Recording) -> None:
        self._exchanges = iter(recording.exchanges)

    @asynccontextmanager
    async def open(
        self, url: str, path: str, body: bytes, headers: Any
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        recorded_path, recorded_body, payloads = next(self._exchanges)
        assert (path, msgspec.json.decode(body)) == (recorded_path, recorded_body)

        async def play() -> AsyncIterator[bytes]:
            for payload in payloads:
                yield payload.encode()

        yield 200, play()

    async def abort(self, url: str, name: str) -> None:
        """The recorded answer ends with it."""


class Recorder(Wire):
    """Asks a server, and keeps what it writes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.exchanges: list[tuple[str, Any, list[str]]] = []

    @asynccontextmanager
    async def open(
        self, url: str, path: str, body: bytes, headers: Any
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        payloads: list[str] = []
        self.exchanges.append((path, msgspec.json.decode(body), payloads))
        async with self._wire.open(url, path, body, headers) as (status, events):

            async def keep() -> AsyncIterator[bytes]:
                async for payload in events:
                    payloads.append(payload.decode())
                    yield payload

            yield status, keep()

    async def abort(self, url: str, name: str) -> None:
        await self._wire.abort(url, name)


def recordings() -> list[Recording]:
    """All that was recorded."""
    return msgspec.json.decode(gzip.decompress(FILE.read_bytes()), type=list[Recording])


def keep_all(made: list[Recording]) -> None:
    """Write the file."""
    FILE.write_bytes(gzip.compress(msgspec.json.encode(made), mtime=0))


async def record(urls: list[str]) -> list[Recording]:
    """Ask the servers."""
    made = []
    async with aiohttp.ClientSession() as session:
        live = FormClient.over(session, urls)

        async def keep(case: Case, cut: Cut | None) -> None:
            direct = await answer_of(session, urls[0], case)
            recorder = Recorder(live.wire)
            client = FormClient(recorder, urls, cuts=[] if cut is None else [cut])
            await client.answer(case)
            streamed = case.body.get("stream") is True
            at = [] if cut is None else [cut.at, cut.way]
            made.append(
                Recording(
                    case.name.removesuffix(", streamed"), at, streamed, direct, recorder.exchanges
                )
            )

        for case in UNDERSTOOD:
            if case.name in RECORDED_WHOLE:
                await keep(case, None)
                await keep(case.streamed(interval=4), None)
        for case in CUT:
            for at in RECORDED_CUTS.get(case.name, ()):
                await keep(case, Cut(at, "close"))
                await keep(case.streamed(interval=4), Cut(at, "abort"))
    return made


def main() -> None:
    """Record."""
    from support.tiny_chat_model import tiny_chat_model
    from support.vllm_server import vllm_servers

    with tempfile.TemporaryDirectory() as folder:
        model = tiny_chat_model(Path(folder) / "model")
        with vllm_servers(model, Path(folder), 2) as servers:
            keep_all(asyncio.run(record([server.url for server in servers])))


if __name__ == "__main__":
    main()
