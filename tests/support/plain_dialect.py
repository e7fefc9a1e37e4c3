"""The smallest dialect: completions of token ids, as they come, one choice."""

from collections.abc import Sequence
from typing import Any

import msgspec

from steersman.mechanisms.fleet import AttemptRequest, Sampling
from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta, Upstream


class PlainDialect:
    """Implements `Dialect`."""

    def ask(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        return self._put(ask, attempt_id, ask.body["prompt"], ask.max_tokens)

    def resume(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        ask.cut = False
        prompt = [*ask.body["prompt"], *ask.token_ids]
        return self._put(ask, attempt_id, prompt, ask.max_tokens - len(ask.token_ids))

    def _put(self, ask: Ask, attempt_id: str, prompt: list[int], max_tokens: int) -> Upstream:
        body = {
            **ask.body,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "return_token_ids": True,
        }
        headers = {"Content-Type": "application/json", "X-Request-Id": attempt_id}
        return Upstream(
            "/v1/completions", msgspec.json.encode(body), headers, f"cmpl-{attempt_id}-0"
        )

    def read(self, ask: Ask, event: dict[str, Any]) -> Delta | None:
        if not event["choices"]:
            return None
        (choice,) = event["choices"]
        return Delta(
            choice["token_ids"],
            choice["text"],
            choice["logprobs"],
            choice["finish_reason"],
            choice["stop_reason"],
        )

    def resumable(self, ask: Ask) -> bool:
        return True


PLAIN = PlainDialect()


def plain_ask(prompt: Sequence[int], max_tokens: int, **fields: Any) -> Ask:
    """`fields` of the ask itself, and `body` of its request."""
    body = {"prompt": list(prompt), "logprobs": 0, "stream_interval": 8, **fields.pop("body", {})}
    return Ask(PLAIN, "/v1/completions", body, {}, max_tokens, **fields)


def raw_ask(body: bytes, path: str = "/v1/completions", **fields: Any) -> Ask:
    """Sent on as it is."""
    return Ask(None, path, body, {"Content-Type": "application/json"}, 16, **fields)


def request_of(ask: Ask, attempt_id: str) -> AttemptRequest:
    """An attempt at what is left of it."""
    left = ask.max_tokens - len(ask.token_ids)
    return AttemptRequest(attempt_id, list(ask.token_ids), left, Sampling(), payload=ask)
