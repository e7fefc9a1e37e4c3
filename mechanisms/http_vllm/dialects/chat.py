"""`/v1/chat/completions`: messages in, a message out.

A chat has no place for a half-written answer that would not be tokenized anew, so what is missing
is asked for as a completion of the prompt's tokens, and told as a chat tells it.
"""

from dataclasses import replace
from typing import Any

from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta, Dialect, Upstream
from steersman.mechanisms.http_vllm.dialects import CHAT_PATH, completions, logprobs
from steersman.mechanisms.http_vllm.dialects.events import delta_of, note_frame
from steersman.mechanisms.http_vllm.dialects.seam import resumable, wants_texts
from steersman.mechanisms.http_vllm.dialects.upstream import SAMPLING_FIELDS, request, streaming

KEPT = (*SAMPLING_FIELDS, "model", "priority", "cache_salt", "session_id", "stream_options")
"""Fields that mean the same to a completion."""
SILENT = "silent"
"""Key of `Delta.rest`: a parser on the engine took the text, or had none; without token ids and
log-probabilities there would have been no chunk."""


class _Chat:
    def ask(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        ask.seam = None
        body = streaming(ask) | ask.body | {"return_token_ids": True}
        if wants_texts(ask, ask.body, abilities):
            body["logprobs"] = True
        return request(ask, CHAT_PATH, body, attempt_id, f"chatcmpl-{attempt_id}")

    def resume(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        body = {name: ask.body[name] for name in KEPT if name in ask.body}
        if "stream_interval" in ask.body:
            body["stream_interval"] = ask.body["stream_interval"]
        if ask.body.get("logprobs"):
            body["logprobs"] = ask.body.get("top_logprobs") or 0
            body["return_tokens_as_token_ids"] = False
        body = completions.resumed(ask, body, abilities)
        return completions.completion(ask, attempt_id, body, abilities)

    def read(self, ask: Ask, event: dict[str, Any]) -> Delta | None:
        if ask.seam is not None:
            delta = completions.read(ask, event)
            return None if delta is None else self._as_chat(ask, delta)
        note_frame(ask, event)
        if ask.prompt_token_ids is None:
            ask.prompt_token_ids = event.get("prompt_token_ids")
        choices = event.get("choices")
        if not choices:
            return None
        choice = choices[0]
        message = choice["delta"]
        if "role" in message:
            ask.frame.setdefault("role", message["role"])
        text = message.get("content") or ""
        delta = delta_of(ask, choice, text, choice.get("logprobs"), ask.body)
        if delta is not None and "content" not in message:
            delta = replace(delta, rest={**delta.rest, SILENT: True})
        return delta

    def resumable(self, ask: Ask) -> bool:
        return ask.prompt_token_ids is not None and resumable(ask, ask.body)

    def _as_chat(self, ask: Ask, delta: Delta) -> Delta:
        told = logprobs.as_chat(
            delta.logprobs,
            delta.token_ids,
            ask.body.get("top_logprobs") or 0,
            as_ids=bool(ask.body.get("return_tokens_as_token_ids")),
        )
        return replace(delta, logprobs=told)


CHAT: Dialect = _Chat()
