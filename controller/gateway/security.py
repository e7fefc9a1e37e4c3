"""Who may ask what, and how much of it: every request passes through here first.

Two tokens: one for requests, one for control, which opens everything.  With any token set, all but
`/health` needs one; with none, the gateway listens only where this machine alone reaches it, and
refuses what a web page of another site makes a browser send.  Tokens are compared as digests in
constant time.  Bodies, headers and times are bounded.

Nothing that a client wrote gets into a log: an unexpected error is told by its type and its place.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import os
import re
import socket
import ssl
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from steersman.controller.gateway.reply import Reply, error_response, refusal, response_of
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.shadow import ANYTHING_ELSE, route_of
from steersman.estimators.errors import InvalidInputError

log = logging.getLogger(__name__)


class Scope(StrEnum):
    """What a token is needed for."""

    OPEN = "open"
    DATA = "data"
    """Requests, and whatever only looks."""
    CONTROL = "control"


DATA = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/inference/v1/generate",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/version",
        "/ping",
        "/load",
        "/steersman/rewards",
        "/finish_session",
    }
)
"""Routes of clients that only want text."""
WATCH = ("/metrics", "/dashboard")
"""Beginnings of the routes that only look; read with either token, by browsers too."""


_PASSED_ON = re.compile(
    r"/(?:(?:v1|v2|inference/v1|cohere/v2)(?:/\w[\w.:@-]*)+|score|rerank|classify|pooling"
    r"|skyrl/v1/generate)",
    re.ASCII,
)
"""Paths of further requests for output, that are passed on as they are.  No segment begins with a
dot: it could climb to a control route."""


def scope_of(request: web.Request) -> Scope:
    """What the request's route is for.  Whatever is not known is control."""
    route = route_of(request)
    if route == "/health":
        return Scope.OPEN if request.path == "/health" else Scope.DATA
    if route in DATA or route.startswith(WATCH):
        return Scope.DATA
    if route == ANYTHING_ELSE and _PASSED_ON.fullmatch(request.path):
        return Scope.DATA
    return Scope.CONTROL


@dataclass(frozen=True, slots=True)
class Tokens:
    """Digests of the tokens; empty where there is none."""

    data: bytes = b""
    admin: bytes = b""

    @classmethod
    def load(cls, settings: GatewayConfig, environ: Mapping[str, str] = os.environ) -> Self:
        """From the files that the settings name, or the environment."""
        return cls(
            _digest(secret(settings.token_file, "STEERSMAN_TOKEN", environ)),
            _digest(secret(settings.admin_token_file, "STEERSMAN_ADMIN_TOKEN", environ)),
        )

    def __bool__(self) -> bool:
        return bool(self.data or self.admin)

    def refusal(self, scope: Scope, presented: str) -> web.Response | None:
        """What to answer to one who presents this token ("": none); None: it may pass."""
        if scope is Scope.OPEN or not self:
            return None
        digest = _digest(presented)
        is_admin = hmac.compare_digest(digest, self.admin)
        is_data = hmac.compare_digest(digest, self.data)
        if digest and (is_admin or (is_data and scope is Scope.DATA)):
            return None
        if digest and is_data:
            why = "control needs the admin token"
            if not self.admin:
                why += (
                    ", and the gateway has none (STEERSMAN_ADMIN_TOKEN, gateway.admin_token_file)"
                )
            challenge = 'Bearer realm="steersman", error="insufficient_scope"'
            return error_response(403, why, {"WWW-Authenticate": challenge})
        why = "the token is not valid" if presented else "a bearer token is needed"
        return error_response(401, why, {"WWW-Authenticate": 'Bearer realm="steersman"'})


def secret(file: str, variable: str, environ: Mapping[str, str] = os.environ) -> str:
    """A secret from a file, or else the environment; "" where there is neither."""
    source = f"the environment variable {variable}"
    text = environ.get(variable, "")
    if file:
        source = file
        try:
            text = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise InvalidInputError(f"{file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{file}: a token is printable ASCII") from error
        if not text:
            raise InvalidInputError(f"{file}: it is empty; valid: a token")
    if not all("!" <= character <= "~" for character in text):
        raise InvalidInputError(f"{source}: a token is printable ASCII without spaces")
    return text


def check_exposure(settings: GatewayConfig, tokens: Tokens) -> None:
    """Refuse to listen without a token where other machines reach it, unless that is wanted."""
    if not tokens and not settings.insecure and not is_loopback(settings.host):
        raise InvalidInputError(
            f"gateway.host is {settings.host}, which other machines reach, and no token is set; "
            "valid: STEERSMAN_TOKEN or gateway.token_file, a loopback address, or --insecure"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidInputError(f"gateway.host: {host!r} is no address of this machine") from error
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def tls_context(settings: GatewayConfig) -> ssl.SSLContext | None:
    """What to speak TLS with; None: in the clear."""
    if not settings.tls_cert:
        if settings.tls_key:
            raise InvalidInputError("gateway.tls_key is set without gateway.tls_cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        files = " and ".join(filter(None, (settings.tls_cert, settings.tls_key)))
        raise InvalidInputError(f"{files}: no certificate with its key: {reason}") from error
    return context


def middlewares(settings: GatewayConfig, tokens: Tokens | None = None) -> list[Middleware]:
    """For the application."""
    tokens = Tokens.load(settings) if tokens is None else tokens

    @web.middleware
    async def shield(request: web.Request, handler: Handler) -> web.StreamResponse:
        """What may not come in, a time limit, and every error is an answer in the engines' form."""
        limit = asyncio.timeout(settings.request_timeout_s)
        try:
            refused = _unwanted(request, tokens)
            if refused is None and (request.content_length or 0) > settings.max_body_bytes:
                refused = _too_large(settings)  # one that tells no size is counted as it comes
            if refused is not None:
                return refused
            async with limit:
                return await handler(request)
        except web.HTTPException as error:
            if error.status < 400 or error.content_type == "application/json":
                raise
            if error.status == 413:
                return _too_large(settings)
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return error_response(error.status, error.reason, headers)
        except TimeoutError as error:
            if not limit.expired():
                return _unexpected(request, error)
            if _has_begun(request):
                raise ConnectionResetError("the answer took too long") from error
            return response_of(too_late(settings))
        except ConnectionError:  # its client went away
            raise
        except Exception as error:
            return _unexpected(request, error)

    return [shield]


def may_ask(headers: Mapping[str, str], tokens: Tokens) -> bool:
    """Whether nothing in its headers forbids a request for output."""
    allowed = tokens.refusal(Scope.DATA, _bearer(headers)) is None
    return allowed and not _is_foreign(headers)


def _unwanted(request: web.Request, tokens: Tokens) -> web.Response | None:
    """Tokens, and the origin of what browsers send."""
    refused = tokens.refusal(scope_of(request), _presented(request))
    if refused is None and _is_foreign(request.headers):
        return error_response(403, "sent by a web page of another site")
    if refused is not None and refused.status == 401 and _is_look(request):
        refused.headers.add("WWW-Authenticate", 'Basic realm="steersman"')
    return refused


def too_late(settings: GatewayConfig) -> Reply:
    """Its time is over."""
    return refusal(504, f"no answer within {settings.request_timeout_s:g} s")


def _too_large(settings: GatewayConfig) -> web.Response:
    limit = f"gateway.max_body_bytes, {settings.max_body_bytes:,} bytes"
    response = error_response(413, f"the body is larger than {limit}")
    response.force_close()  # the rest of it is not worth reading
    return response


def unexpected(route: str, error: Exception) -> Reply:
    """A bug.  Its message may quote what a client wrote, so it is told to nobody."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename}:{place.lineno}"
    log.error("%s failed: %s at %s", route, type(error).__name__, where)
    return refusal(500, "an error inside the gateway")


def _unexpected(request: web.Request, error: Exception) -> web.Response:
    reply = unexpected(route_of(request), error)
    if _has_begun(request):
        # without the bug's own words, which would be logged
        raise ConnectionResetError("the answer cannot be finished") from None
    return response_of(reply)


def _has_begun(request: web.Request) -> bool:
    """Whether some of the answer is out, so that no other one can be given."""
    return request.writer.output_size > 0


def _presented(request: web.Request) -> str:
    """The token that a request carries.

    A browser cannot send a bearer token when a page is opened: what only looks takes the token as
    the password of HTTP's basic authentication too.  Nothing else does, since a browser sends it
    along by itself, whoever made it ask.
    """
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic" and _is_look(request):
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return _bearer(request.headers)


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _is_look(request: web.Request) -> bool:
    return request.method in ("GET", "HEAD") and route_of(request).startswith(WATCH)


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a web page of another site made a browser send it: nobody asked for that."""
    origin = headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != headers.get("Host")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest() if token else b""
