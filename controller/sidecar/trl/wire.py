"""One request over HTTP: sent, read, and what its failure means."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.estimators.errors import InvalidInputError

MAX_BUSY_S = 5.0
"""Longest wait after a 429, whatever the server proposes."""
QUOTED = 300
"""Characters of an error that are quoted."""


class RefusedError(InvalidInputError):
    """The server will not do what it was asked."""


class UnreachableError(Exception):
    """It may work another time, or elsewhere."""


class BusyError(UnreachableError):
    """It says when to come again."""

    def __init__(self, why: str, wait_s: float) -> None:
        super().__init__(why)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said."""

    body: Any
    headers: Mapping[str, str]
    at: str
    """URL of who said it."""


class Wire:
    """Connections of one event loop; close it in the end."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )

    async def close(self) -> None:
        """End all of them."""
        await self._session.close()

    async def ask(
        self,
        method: str,
        url: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Raises `RefusedError`, `BusyError` or `UnreachableError`."""
        sent = dict(headers or {})
        known = self._endpoints
        if token := known.token if url == known.gateway else known.engine_token:
            sent["Authorization"] = f"Bearer {token}"
        data = None
        if json is not None:
            data, sent["Content-Type"] = msgspec.json.encode(json), "application/json"
        try:
            async with self._session.request(
                method, url + path, data=data, params=params, headers=sent
            ) as response:
                raw = await response.read()
                status, told = response.status, dict(response.headers)
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{url}: {str(error) or type(error).__name__}") from error
        if status < 400:
            return Reply(_value(raw), told, url)
        why = f"{url}{path} answered {status}: {_quoted(raw)}"
        if status == 429:
            raise BusyError(why, min(_seconds(told.get("Retry-After")), MAX_BUSY_S))
        if status in (401, 403):
            raise RefusedError(
                f"{why}; the gateway's token (for control: its admin token) goes into `token`, "
                "that of engines into `engine_token`"
            )
        if status < 500:
            raise RefusedError(why)
        raise UnreachableError(why)


def _value(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        return raw.decode("utf-8", "replace")


def _quoted(raw: bytes) -> str:
    """What an error says, in one line."""
    told = _value(raw)
    for key in ("error", "message", "detail"):
        if isinstance(told, dict) and key in told:
            told = told[key]
    text = " ".join(str(told).split())
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def _seconds(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0
