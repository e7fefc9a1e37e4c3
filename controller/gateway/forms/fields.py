"""What is understood of a request: known fields with values whose meaning is certain.

Limits are vLLM's own where a value beyond them would be refused as a whole, but not sample by
sample.  The rest is left to the engine, which refuses each sample alike.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

MAX_ASKS = 256
"""Samples of one request that are told apart; more of them are sent on as they are, so that one
request cannot fill the books."""
SAMPLE_GUESS = 256
"""Guess at the tokens of what is sent on unread."""
INT64 = 2**63


def is_bool(value: Any) -> bool:
    """true or false."""
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    """A string that is not empty."""
    return isinstance(value, str) and value != ""


def is_any_text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def integer(least: int, most: int = INT64 - 1) -> Check:
    """A whole number within limits; true and 1.0 are none."""
    return lambda value: type(value) is int and least <= value <= most


def number(least: float, most: float, *, above: bool = False) -> Check:
    """A finite number within limits; `above`: greater than `least`."""

    def check(value: Any) -> bool:
        if type(value) not in (int, float) or not math.isfinite(value):
            return False
        return bool(value > least if above else value >= least) and value <= most

    return check


def list_of(check: Check, least: int = 0) -> Check:
    """A list of so many valid values at least."""
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(check, value))


def or_null(check: Check) -> Check:
    """null means the default."""
    return lambda value: value is None or check(value)


def only(*values: Any) -> Check:
    """One of `values`, of the same type."""
    return lambda value: any(type(value) is type(v) and value == v for v in values)


def is_stream_options(value: Any) -> bool:
    """What it may say about usage."""
    return isinstance(value, dict) and all(
        name in ("include_usage", "continuous_usage_stats") and (v is None or is_bool(v))
        for name, v in value.items()
    )


def is_logit_bias(value: Any) -> bool:
    """Token ids, as JSON has them, with numbers."""
    bias = number(-100, 100)
    return isinstance(value, dict) and all(k.isdecimal() and bias(v) for k, v in value.items())


def is_tokens(value: Any) -> bool:
    """Token ids, at least one; a long prompt has many, so the loops are C's."""
    return (
        isinstance(value, list)
        and set(map(type, value)) == {int}
        and min(value) >= 0
        and max(value) < INT64
    )


penalty = number(-2, 2)

SAMPLING: dict[str, Check] = {
    "temperature": or_null(number(0, 2)),
    "top_p": or_null(number(0, 1, above=True)),
    "top_k": or_null(integer(-1)),
    "min_p": or_null(number(0, 1)),
    "repetition_penalty": or_null(number(0, 1e6, above=True)),
    "presence_penalty": or_null(penalty),
    "frequency_penalty": or_null(penalty),
    "seed": or_null(integer(-INT64, INT64 - 1 - MAX_ASKS)),
    "stop": or_null(lambda value: is_text(value) or list_of(is_text)(value)),
    "stop_token_ids": or_null(lambda value: value == [] or is_tokens(value)),
    "min_tokens": integer(0),
    "ignore_eos": is_bool,
    "skip_special_tokens": is_bool,
    "spaces_between_special_tokens": is_bool,
    "include_stop_str_in_output": is_bool,
    "logit_bias": or_null(is_logit_bias),
    "allowed_token_ids": or_null(is_tokens),
    "bad_words": list_of(is_text),
}
"""Fields of OpenAI's APIs and of vLLM's SamplingParams alike."""

COMMON: dict[str, Check] = SAMPLING | {
    "model": or_null(is_text),
    "n": integer(1, MAX_ASKS),
    "max_tokens": or_null(integer(1)),
    "user": or_null(is_any_text),
    "stream": or_null(is_bool),
    "stream_options": or_null(is_stream_options),
    "stream_interval": or_null(integer(1)),
    "priority": integer(-INT64),
    "request_id": is_text,
    "session_id": or_null(is_any_text),
    "cache_salt": or_null(is_text),
    "return_tokens_as_token_ids": or_null(is_bool),
    "return_token_ids": or_null(is_bool),
    "echo": only(False),
    "use_beam_search": only(False),
    "length_penalty": number(-1e6, 1e6),
    "add_special_tokens": is_bool,
    "prompt_logprobs": only(None),
    "response_format": only(None, {"type": "text"}),
    "structured_outputs": only(None),
    "repetition_detection": only(None),
    "thinking_token_budget": only(None),
    "vllm_xargs": only(None),
    "kv_transfer_params": only(None),
    "ec_transfer_params": only(None),
    "logprob_token_ids": only(None),
    "truncate_prompt_tokens": only(None),
}
"""Fields of both of OpenAI's APIs."""

OWN = (
    "n",
    "stream",
    "stream_options",
    "request_id",
    "return_token_ids",
)
"""Fields that an ask has in its own way."""


def understood(body: Mapping[str, Any], checks: Mapping[str, Check]) -> bool:
    """Whether every field is known and valid."""
    return all((check := checks.get(name)) is not None and check(body[name]) for name in body)


def samples_alike(sampling: Mapping[str, Any], n: int) -> bool:
    """Whether `n` samples may be asked for one by one: vLLM refuses several of a greedy request."""
    return n == 1 or sampling.get("temperature") is None or sampling["temperature"] >= 1e-5


def continuable(sampling: Mapping[str, Any]) -> bool:
    """Whether the tokens written so far may become a prompt without changing what is sampled."""
    return not (
        sampling.get("presence_penalty")
        or sampling.get("frequency_penalty")
        or sampling.get("bad_words")
    )


def wants_usage(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stream ends with the usage, and whether each chunk has it."""
    options = body.get("stream_options") or {}
    at_end = bool(options.get("include_usage"))
    return at_end, at_end and bool(options.get("continuous_usage_stats"))
