"""Which requests are usual: those that want nothing but their output, with a whole head."""

import httptools
import msgspec
from multidict import CIMultiDict

from steersman.controller.gateway.asked import Asked
from steersman.controller.gateway.forms import FORMS
from steersman.controller.gateway.security import Tokens, may_ask

MOST_HEAD, MOST_BODY = 8190, 256 * 1024
"""Bytes.  aiohttp's own limit of a header; and a prompt of 40,000 token ids, which takes longer to
read than to wait."""
UNUSUAL = ("Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade", "Idempotency-Key")
"""Headers that ask for more than an answer."""


class Head(msgspec.Struct, frozen=True):
    """Of a usual request."""

    asked: Asked
    size: int
    """Bytes before the body."""
    total: int
    """Bytes of the request."""


class _Reader:
    """Told by httptools what a head says."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: CIMultiDict[str] = CIMultiDict()

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))


def usual_head(data: bytes, most_body: int, tokens: Tokens) -> Head | None:
    """The head that `data` begins with; None: it is not whole, or not usual."""
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD)
    if end < 0 or not data.startswith(b"POST /"):
        return None
    reader = _Reader()
    parser = httptools.HttpRequestParser(reader)
    try:
        parser.feed_data(data[: end + 4])
    except httptools.HttpParserError:
        return None
    headers, path = reader.headers, reader.target.decode("latin-1")
    length = headers.get("Content-Length", "")
    if (
        path not in FORMS
        or parser.get_http_version() != "1.1"
        or not parser.should_keep_alive()
        or not (length.isascii() and length.isdecimal())
        or int(length) > min(most_body, MOST_BODY)
        or any(name in headers for name in UNUSUAL)
        or not may_ask(headers, tokens)
    ):
        return None
    return Head(Asked("POST", path, path, headers), end + 4, end + 4 + int(length))
