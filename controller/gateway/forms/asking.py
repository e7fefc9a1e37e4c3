"""Asks from a request: one per sample, or one that is sent on as it came."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from steersman.controller.gateway.forms.fields import OWN, SAMPLE_GUESS, wants_usage
from steersman.mechanisms.http_vllm.ask import Abilities, Ask

BYTES_PER_TOKEN = 4
"""Of English text, about; until an engine has counted."""


def as_it_is(path: str, body: Mapping[str, Any], raw: bytes, headers: Mapping[str, str]) -> Ask:
    """Sent on to one engine; the gateway's own field has been taken out of `body`."""
    if b'"steersman"' in raw:
        raw = msgspec.json.encode(body)
    kept = {name: value for name, value in headers.items() if name.lower() != "content-type"}
    return Ask(
        dialect=None,
        path=path,
        body=raw,
        headers=kept | {"Content-Type": "application/json"},
        max_tokens=SAMPLE_GUESS,
        streamed=body.get("stream") is True,
        continuable=False,
        estimated_prompt_tokens=guess(len(raw)),
    )


def guess(text_bytes: int) -> int:
    """Tokens of a text."""
    return max(text_bytes // BYTES_PER_TOKEN, 1)


def own_fields(body: Mapping[str, Any], abilities: Abilities) -> dict[str, Any]:
    """The body of an ask, without what makes it one of several.

    The usage is asked for where its event is of use: it may tell of cached tokens, and it comes
    after the last token.  Without it the fingerprint comes with that one.
    """
    kept = {name: value for name, value in body.items() if name not in OWN}
    streamed = body.get("stream") is True
    if not streamed:
        kept.pop("stream_interval", None)
    if not streamed or wants_usage(body)[0]:
        kept.pop("stream_options", None)
        if abilities.tells_usage:
            kept["stream_options"] = {"include_usage": True}
    return kept


def seeded(sampling: dict[str, Any], n: int) -> Iterator[dict[str, Any]]:
    """The sampling of each of `n` samples, with the seeds that vLLM gives them."""
    seed = sampling.get("seed")
    for index in range(n):
        yield sampling if seed is None or n == 1 else sampling | {"seed": seed + index}
