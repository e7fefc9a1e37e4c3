"""HTTP/1.1 connections to engines, kept for the next request: the data path, and nothing more.

A gateway spends its processor time on requests, not on tokens, and a general client is the largest
part of it: with aiohttp's, a gateway spends .76 ms on a request; with this one .65.
Parsing is httptools' (Node's own parser); this only writes requests, hands bodies over as they
come, and keeps connections.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, cast

import httptools
from yarl import URL

HIGH_WATER = 1 << 20
"""Bytes of a body that wait to be read before its server is asked to hold on."""


class Response:
    """The answer on one connection; its body is read as it comes.

    Close it when done: a connection whose answer was read to its end serves the next request.
    """

    def __init__(self, connection: "Connection") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By lower-case name; the last of several wins."""
        self._connection: Connection | None = connection
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._taker: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._begun = self._complete = False

    async def readany(self) -> bytes:
        """Whatever has come; empty at the end.  Raises `OSError` where the connection broke."""
        while not self._pieces:
            if self._complete:
                return b""
            await self._wait()
        return self.read_nowait()

    def give(self, taker: Callable[[bytes], bool]) -> None:
        """From now on `taker` gets the body, each piece as it comes and not in some task's turn.

        It answers whether `moved` shall return; what it raises, `moved` raises.
        """
        self._taker = taker
        if self._pieces:
            self.body(self.read_nowait())

    async def moved(self) -> None:
        """Until `give`'s taker wants it, or the body ends."""
        if self._error is None and not self._complete:
            await self._wait()
        if self._error is not None:
            raise self._error

    def read_nowait(self) -> bytes:
        """What is here already."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._waiting > HIGH_WATER and self._connection is not None:
            self._connection.hold(False)
        self._waiting = 0
        return data

    async def read(self) -> bytes:
        """All of the body."""
        parts = []
        while part := await self.readany():
            parts.append(part)
        return b"".join(parts)

    def at_eof(self) -> bool:
        """Whether the end has come and everything was read."""
        return self._complete and not self._pieces

    def close(self) -> None:
        """Give the connection back, or end it where the answer is not complete.  Idempotent."""
        connection, self._connection = self._connection, None
        self._taker = None  # it may know this answer: a circle that only the collector would end
        if connection is not None:
            connection.release(self._complete)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def head(self) -> None:
        """Wait for status and headers."""
        while not self._begun:
            await self._wait()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Told by the connection

    def begin(self, status: int) -> None:
        """The headers are complete."""
        self.status, self._begun = status, True
        self._wake()

    def body(self, data: bytes) -> int:
        """A piece of the body; returns how much waits to be read."""
        if self._taker is not None:
            if self._error is not None:
                return 0
            try:
                wanted = self._taker(data)
            except Exception as error:
                self._error, wanted = error, True
            if wanted:
                self._wake()
            return 0
        self._pieces.append(data)
        self._waiting += len(data)
        self._wake()
        return self._waiting

    def complete(self) -> None:
        """The body has ended."""
        self._complete = True
        self._wake()

    def broke(self, error: Exception) -> None:
        """The connection is gone."""
        if not self._complete:
            self._error = error
            self._wake()


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, pool: "Connections", place: tuple[str, int, bool]) -> None:
        self._pool, self.place = pool, place
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._response: Response | None = None
        self._keeps = self._bodiless = False
        self.idle_since_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a request can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> Response:
        """Write a request."""
        assert self._transport is not None
        self._parser, self._keeps = httptools.HttpResponseParser(self), False
        self._bodiless = request.startswith(b"HEAD ")
        self._response = Response(self)
        self._transport.write(request)
        return self._response

    def release(self, complete: bool) -> None:
        """Its answer is not wanted any more."""
        self._response = None
        if complete and self._keeps and self.is_open:
            self._pool.keep(self)
        else:
            self.end()

    def hold(self, held: bool) -> None:
        """Let the server wait, or go on."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if held else self._transport.resume_reading)()

    def end(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Parse; what comes without having been asked for ends it."""
        if self._response is None or self._parser is None:
            self.end()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._response.broke(ConnectionResetError(f"it does not speak HTTP: {error}"))
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        """Closed, by whomever."""
        self._transport = None
        self._pool.gone(self)
        if self._response is not None:
            told = error if isinstance(error, OSError) else ConnectionResetError("it was closed")
            self._response.broke(told)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._response is not None:
            self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Status and headers are here."""
        assert self._parser is not None
        if self._response is not None:
            self._keeps = self._parser.should_keep_alive() and not self._bodiless
            self._response.begin(self._parser.get_status_code())
            if self._bodiless:  # whatever length it tells
                self._response.complete()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._response is not None and self._response.body(data) > HIGH_WATER:
            self.hold(True)

    def on_message_complete(self) -> None:
        """The answer has ended."""
        if self._response is not None:
            self._response.complete()


class Connections:
    """Those of one fleet, by where they lead."""

    def __init__(
        self,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        keep_alive_s: float,
        tls: ssl.SSLContext | bool,
    ) -> None:
        self._headers = headers
        self._connect_timeout_s, self._keep_alive_s, self._tls = (
            connect_timeout_s,
            keep_alive_s,
            tls,
        )
        self._idle: dict[tuple[str, int, bool], list[Connection]] = {}
        self._all: set[Connection] = set()

    async def request(
        self, method: str, url: URL, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        """The head of an answer.

        A kept connection may have been closed by its server while the request was on its way: if it
        breaks before any answer, the request goes out once more, on a new one.  Raises `OSError`,
        `TimeoutError` where no connection can be made.
        """
        place = (url.host or "", url.port or 80, url.scheme == "https")
        told = self._written(method, url, body or b"", headers)
        if (kept := self._kept(place)) is not None:
            response = kept.send(told)
            try:
                await response.head()
            except ConnectionError:
                response.close()
            except BaseException:
                response.close()
                raise
            else:
                return response
        response = (await self._connected(place)).send(told)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    def keep(self, connection: Connection) -> None:
        """It may serve another request."""
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.setdefault(connection.place, []).append(connection)

    def gone(self, connection: Connection) -> None:
        """It was closed."""
        self._all.discard(connection)
        idle = self._idle.get(connection.place)
        if idle and connection in idle:
            idle.remove(connection)

    def close(self) -> None:
        """End all of them."""
        for connection in list(self._all):
            connection.end()
        self._idle.clear()

    def _kept(self, place: tuple[str, int, bool]) -> Connection | None:
        """The one that was used last; those that were idle too long are ended."""
        idle, now_s = self._idle.get(place, []), asyncio.get_running_loop().time()
        while idle and now_s - idle[0].idle_since_s > self._keep_alive_s:
            idle.pop(0).end()
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connected(self, place: tuple[str, int, bool]) -> Connection:
        host, port, secure = place
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self, place), host, port, ssl=self._tls if secure else None
            )
        self._all.add(connection)
        return connection

    def _written(self, method: str, url: URL, body: bytes, headers: Mapping[str, str]) -> bytes:
        authority = url.raw_authority.rpartition("@")[2]
        lines = [f"{method} {url.raw_path_qs} HTTP/1.1", f"Host: {authority}"]
        for name, value in {**self._headers, **headers}.items():
            lines.append(f"{name}: {value}")
        if body or method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
            lines.append(f"Content-Length: {len(body)}")
        for line in lines:
            if "\r" in line or "\n" in line or "\0" in line:
                raise ConnectionAbortedError("a header or path holds a line break")
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
        return head + b"\r\n\r\n" + body
