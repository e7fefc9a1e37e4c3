"""Aborts of requests by their names inside an engine, which then tells their last tokens.

Those of one turn of the event loop go together.  Who does not end for it is left: its connection is
closed.
"""

import asyncio
from contextlib import suppress

import aiohttp
import msgspec
from yarl import URL

from steersman.mechanisms.http_vllm.errand import LAST_WORDS_S, Errand
from steersman.mechanisms.http_vllm.wire import Wire

AGAIN_S = 0.25
"""An abort may overtake its request; the second one does not."""


class Aborts:
    """On their way to one engine."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._ids: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        """Under way."""

    def send(self, url: URL, errand: Errand) -> None:
        """Abort it, once more if it still runs a little later, and leave it in the end."""
        loop = asyncio.get_running_loop()
        self._put(url, errand)
        loop.call_later(AGAIN_S, self._put, url, errand)
        loop.call_later(LAST_WORDS_S, errand.stop)

    def _put(self, url: URL, errand: Errand) -> None:
        if errand.attempt.end is not None:
            return
        if not self._ids:
            asyncio.get_running_loop().call_soon(self._flush, url)
        self._ids.append(errand.abort_id)

    def _flush(self, url: URL) -> None:
        ids, self._ids = self._ids, []
        task = asyncio.create_task(self._post(url, msgspec.json.encode({"request_ids": ids})))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _post(self, url: URL, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        with suppress(aiohttp.ClientError, OSError, TimeoutError):  # the connection closes anyway
            await self._wire.call("POST", url, body, headers)
