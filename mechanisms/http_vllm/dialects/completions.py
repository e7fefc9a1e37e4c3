"""`/v1/completions`: a text or token ids in, text out."""

from typing import Any

from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta, Dialect, Upstream
from steersman.mechanisms.http_vllm.dialects import COMPLETIONS_PATH
from steersman.mechanisms.http_vllm.dialects.events import delta_of, note_frame
from steersman.mechanisms.http_vllm.dialects.logprobs import with_texts
from steersman.mechanisms.http_vllm.dialects.seam import bridging, resumable, seam_of, wants_texts
from steersman.mechanisms.http_vllm.dialects.upstream import carried_on, request, streaming


class _Completions:
    def ask(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        ask.seam = None
        return completion(ask, attempt_id, ask.body, abilities)

    def resume(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        return completion(ask, attempt_id, resumed(ask, ask.body, abilities), abilities)

    def read(self, ask: Ask, event: dict[str, Any]) -> Delta | None:
        return read(ask, event)

    def resumable(self, ask: Ask) -> bool:
        return ask.prompt_token_ids is not None and resumable(ask, ask.body)


def completion(ask: Ask, attempt_id: str, body: dict[str, Any], abilities: Abilities) -> Upstream:
    """A streaming request that tells token ids."""
    if wants_texts(ask, ask.body, abilities):
        body = with_texts(body)
    body = streaming(ask) | body | {"return_token_ids": True}
    return request(ask, COMPLETIONS_PATH, body, attempt_id, f"cmpl-{attempt_id}-0")


def resumed(ask: Ask, body: dict[str, Any], abilities: Abilities) -> dict[str, Any]:
    """`body` for what is missing."""
    assert ask.prompt_token_ids is not None
    seam = ask.seam = seam_of(ask, ask.body)
    prompt = ask.prompt_token_ids + ask.token_ids[: seam.start]
    left = ask.max_tokens - seam.start
    if abilities.max_model_len:
        left = min(left, abilities.max_model_len - len(prompt))
    rest = carried_on(body, ask, seam.start) | {"prompt": prompt, "max_tokens": left}
    return bridging(ask, rest, ask.body)


def read(ask: Ask, event: dict[str, Any]) -> Delta | None:
    """One event of a completion."""
    note_frame(ask, event)
    choices = event.get("choices")
    if not choices:
        return None
    choice = choices[0]
    if ask.prompt_token_ids is None:
        ask.prompt_token_ids = choice.get("prompt_token_ids")
    return delta_of(ask, choice, choice.get("text") or "", choice.get("logprobs"), ask.body)


COMPLETIONS: Dialect = _Completions()
