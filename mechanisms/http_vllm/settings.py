"""How to reach engines over HTTP, and how long to be patient with them."""

from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from steersman.estimators.errors import InvalidInputError


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of a fleet of engines; times in seconds."""

    api_key: str = ""
    """Sent as a bearer token; empty: none."""
    connect_timeout_s: float = 5.0
    stall_timeout_s: float = 60.0
    """An engine is given up if for so long no request running there got any token, and its
    counters stood still."""
    scrape_s: float = 0.5
    """Between two looks at an engine's metrics, which are its health check too."""
    revive_s: float = 2.0
    """Between two looks at a dead engine."""
    verify_tls: bool = True


def clean_urls(urls: Sequence[str]) -> list[str]:
    """Base URLs of engines, without a trailing `/v1`."""
    if not urls:
        raise InvalidInputError("no engine URL was given; valid: http://HOST:PORT")
    cleaned = [_clean(url) for url in urls]
    for number, url in enumerate(cleaned):
        if url in cleaned[:number]:
            raise InvalidInputError(f"engine URL {url!r} was given twice")
    return cleaned


def _clean(url: str) -> str:
    problem = InvalidInputError(f"{url!r} is no engine URL; valid: http://HOST:PORT")
    text = url.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise problem from None
    if not valid or parts.query or parts.fragment:
        raise problem
    return text
