"""HTTP to engines: kept connections for requests, and new ones for what a kept one might spoil.

Requests for output go over `connections`, which is made for them.  Everything else is rare and goes
through aiohttp's client, on connections of its own.
"""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

import aiohttp
from yarl import URL

from steersman.mechanisms.http_vllm.ask import Answer
from steersman.mechanisms.http_vllm.connections import Connections
from steersman.mechanisms.http_vllm.response import Response
from steersman.mechanisms.http_vllm.settings import HttpSettings

KEEP_ALIVE_S = 3.0
"""Below the five seconds after which a vLLM server closes an idle connection."""
LOOK_S = 5.0
"""Patience for what is answered without the model: metrics, health, lists."""


class Wire:
    """Shared by the engines of one fleet."""

    def __init__(self, settings: HttpSettings) -> None:
        # told here, aiohttp need not work them out for each request
        headers = {"Accept-Encoding": "identity", "User-Agent": "steersman"}
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s)

        def session(*, kept: bool) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(
                limit=0,
                force_close=not kept,
                keepalive_timeout=KEEP_ALIVE_S if kept else None,
                ssl=settings.verify_tls,
            )
            return aiohttp.ClientSession(
                connector=connector,
                headers=headers,
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )

        self._kept, self._fresh = session(kept=True), session(kept=False)
        tls = ssl.create_default_context()
        if not settings.verify_tls:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self.connections = Connections(headers, settings.connect_timeout_s, KEEP_ALIVE_S, tls)

    async def call(
        self,
        method: str,
        url: URL,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = LOOK_S,
    ) -> Answer:
        """A whole answer, on a new connection; raises `aiohttp.ClientError` or `TimeoutError`."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._fresh.request(
            method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            return await whole(response)

    async def look(self, url: URL, timeout_s: float = LOOK_S) -> bytes | None:
        """The body of a page that is asked for again and again; None: there is no such page."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._kept.get(url, timeout=timeout, allow_redirects=False) as response:
            body = await response.read()
            return body if response.status == 200 else None

    async def close(self) -> None:
        """Closes every connection."""
        self.connections.close()
        for session in (self._kept, self._fresh):
            with suppress(aiohttp.ClientError, OSError):
                await session.close()

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def whole(response: aiohttp.ClientResponse | Response) -> Answer:
    """Everything of an answer."""
    body = await response.read()
    content_type = response.headers.get("content-type", "application/json")
    return Answer(response.status, body, content_type)
