"""Connections to a gateway byte by byte, and a lane without one."""

import asyncio
import json
import re
from contextlib import asynccontextmanager, suppress
from typing import Any

import httptools
from support.gateway import Gateway

from steersman.controller.gateway.lane import Lane, Lanes
from steersman.controller.gateway.retries import Retries
from steersman.controller.gateway.security import Tokens

PATH = "/v1/completions"
BODY = {"model": "fake-model", "prompt": [7, 8, 9], "max_tokens": 8, "ignore_eos": True}
SLOW = 0.01
"""Seconds per token where something happens in the middle."""


def raw(body: Any = BODY, path: str = PATH, method: str = "POST", **headers: str) -> bytes:
    """A request in bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = {"Host": "x", "Content-Length": str(len(data))}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data


class Answers:
    """Answers on one connection, taken apart."""

    def __init__(self) -> None:
        self.all: list[tuple[int, bytes]] = []
        self.heads: list[dict[str, str]] = []
        """Headers of each, but for when and by whom."""
        self._head: dict[str, str] = {}
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self._head = {}
        self.heads.append(self._head)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in (b"date", b"server"):
            self._head[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.all.append((self._parser.get_status_code(), self._body))
        self._body = b""

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)


class Client:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.answers = reader, writer, Answers()

    async def send(self, *pieces: bytes) -> None:
        """Each in a segment of its own, and seen before the next."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            for _ in range(5):
                await asyncio.sleep(0)

    async def receive(self, count: int) -> list[tuple[int, bytes]]:
        """Wait until so many answers are here."""
        async with asyncio.timeout(10):
            while len(self.answers.all) < count:
                data = await self.reader.read(65536)
                if not data:
                    break
                self.answers.feed(data)
        return self.answers.all

    async def until_closed(self) -> bytes:
        """All that comes until the gateway closes or breaks it."""
        told = b""
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                while data := await self.reader.read(65536):
                    told += data
        return told

    async def closed(self) -> bool:
        """Whether the gateway closes it, with nothing more to say."""
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                return not await self.reader.read(65536)
        return True


@asynccontextmanager
async def client(gate: Gateway) -> Any:
    """Connected."""
    host, port = gate.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def text(answer: tuple[int, bytes]) -> tuple[int, Any]:
    """Status, and what was written or said."""
    status, body = answer
    if body.startswith(b"data:"):
        return status, "".join(re.findall(r'"text":"(.*?)"', body.decode()))
    told = json.loads(body)
    return status, told["choices"][0]["text"] if status == 200 else told


class Wire(asyncio.Transport):
    """What a lane does to its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.reads, self.closed = b"", True, False
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class Handler(asyncio.Protocol):
    """What aiohttp would get."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def pause_writing(self) -> None:
        self.told.append("paused")

    def data_received(self, data: bytes) -> None:
        self.told.append("data")
        self.data += data


def lane_of(gate: Gateway) -> tuple[Lane, Handler, Wire]:
    """One on a connection that is none, what takes over from it, and that connection."""
    lanes, handler = Lanes(gate.desk, gate.desk.settings, Tokens(), Retries()), Handler()
    lanes.behind = lambda: handler
    lane, wire = Lane(lanes), Wire()
    lane.connection_made(wire)
    return lane, handler, wire


def plain(answer: tuple[int, bytes]) -> tuple[int, str]:
    """Without what differs from one call to the next."""
    status, body = answer
    return status, re.sub(r'"(id|request_id)":"[^"]*"|"created":\d+', "", body.decode())
