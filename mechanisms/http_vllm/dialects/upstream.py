"""What requests to engines have in common, whichever API they use."""

from typing import Any

import msgspec

from steersman.mechanisms.execution import mixed_seed
from steersman.mechanisms.http_vllm.ask import Ask, Upstream

PROGRESS_TOKENS = 64
"""Tokens per event where the client does not stream: at 50 tokens a second an engine that dies
takes about a second of work along, and a thousand sequences make 800 events a second.  Each event
wakes two processes, which costs more than reading it."""

SAMPLING_FIELDS = (
    "allowed_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "min_tokens",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_k",
    "top_p",
)
"""Fields that chats and completions have in common and that mean the same after a cut, with
`min_tokens` less what is written.  `repetition_penalty` counts the prompt's tokens like those
written; presence and frequency penalties do not."""

_encoder = msgspec.json.Encoder()


def request(ask: Ask, path: str, body: dict[str, Any], attempt_id: str, abort_id: str) -> Upstream:
    """The request, under the attempt's name."""
    headers = {k: v for k, v in ask.headers.items() if k.lower() != "x-request-id"}
    headers |= {"X-Request-Id": attempt_id, "Content-Type": "application/json"}
    return Upstream(path, _encoder.encode(body), headers, abort_id)


def streaming(ask: Ask) -> dict[str, Any]:
    """Fields of a request for a stream."""
    return (
        {"stream": True} if ask.streamed else {"stream": True, "stream_interval": PROGRESS_TOKENS}
    )


def carried_on(sampling: dict[str, Any], ask: Ask, written: int) -> dict[str, Any]:
    """How to sample the rest, where `written` tokens of it stay.

    A continuation with the first attempt's seed would draw from the same stream of numbers that
    drew the beginning, and so depend on it; it gets a seed of its own.
    """
    rest = dict(sampling)
    if rest.get("min_tokens"):
        rest["min_tokens"] = max(rest["min_tokens"] - written, 0)
    if rest.get("seed") is not None:
        rest["seed"] = mixed_seed(rest["seed"], len(ask.token_ids))
    return rest
