"""HTTP/1.1 connections to engines, kept for the next request: the data path, and nothing more.

A gateway spends its processor time on requests, not on tokens, and a general client is the largest
part of it: .1 ms of the .76 that a request took were saved by this one.
Parsing is httptools' (Node's own parser); this only writes requests, hands bodies over as they
come, and keeps connections.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import cast

import httptools
from yarl import URL

from steersman.mechanisms.http_vllm.response import HIGH_WATER, Response


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

    def at_once(
        self, method: str, url: URL, body: bytes | None, headers: Mapping[str, str]
    ) -> Response | None:
        """Send it on a kept connection; None: there is none.  Give it to `request` to wait for."""
        return self._sent(_place(url), self._written(method, url, body or b"", headers))

    async def request(
        self,
        method: str,
        url: URL,
        body: bytes | None,
        headers: Mapping[str, str],
        sent: Response | None = None,
    ) -> Response:
        """The head of an answer; to what was `sent` at once, if it was.

        A kept connection may have been closed by its server while the request was on its way: if it
        breaks before any answer, the request goes out once more, on a new one.  Raises `OSError`,
        `TimeoutError` where no connection can be made.
        """
        place, told = _place(url), self._written(method, url, body or b"", headers)
        response = self._sent(place, told) if sent is None else sent
        if response is not None:
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

    def _sent(self, place: tuple[str, int, bool], told: bytes) -> Response | None:
        kept = self._kept(place)
        return None if kept is None else kept.send(told)

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


def _place(url: URL) -> tuple[str, int, bool]:
    """Host, port, and whether it is encrypted."""
    return url.host or "", url.port or 80, url.scheme == "https"
