"""What a client gets in one piece; refusals have the form in which engines tell theirs."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

import msgspec
from aiohttp import web

JSON: Mapping[str, str] = MappingProxyType({"Content-Type": "application/json"})


class Reply(msgspec.Struct, frozen=True):
    """An answer that can be sent more than once."""

    status: int
    body: bytes
    headers: Mapping[str, str] = JSON


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    """An error, as an engine would tell it."""
    kind = HTTPStatus(status).phrase
    error = {"message": message, "type": kind, "param": None, "code": status}
    body = msgspec.json.encode({"error": error})
    return Reply(status, body, {**JSON, **headers} if headers else JSON)


def response_of(reply: Reply) -> web.Response:
    """The same for aiohttp."""
    return web.Response(status=reply.status, body=reply.body, headers=reply.headers)


def error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A refusal for aiohttp."""
    return response_of(refusal(status, message, headers))
