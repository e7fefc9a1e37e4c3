"""Reading the events of OpenAI's two streaming APIs, as vLLM writes them."""

from typing import Any

from steersman.mechanisms.http_vllm.ask import Ask, Delta
from steersman.mechanisms.http_vllm.dialects.seam import joined
from steersman.mechanisms.http_vllm.dialects.text import ABORTED, LEVEL

FRAME = ("created", "model", "system_fingerprint", "usage", "metrics", "prompt_text")
"""Fields of events that an answer tells once."""


def note_frame(ask: Ask, event: dict[str, Any]) -> None:
    """Keep what the event tells of the answer as a whole."""
    frame = ask.frame
    if ask.seam is None:
        for name in FRAME:
            if event.get(name) is not None:
                frame[name] = event[name]
    elif event.get("system_fingerprint") is not None:
        frame["system_fingerprint"] = event["system_fingerprint"]


def delta_of(
    ask: Ask, choice: dict[str, Any], text: str, told: Any, sampling: dict[str, Any]
) -> Delta | None:
    """The choice's news; None: there is none."""
    token_ids, finish_reason = choice.get("token_ids") or [], choice.get("finish_reason")
    if not (token_ids or text or finish_reason):
        return None
    rest = {LEVEL: ABORTED} if finish_reason == "abort" else {}
    delta = Delta(token_ids, text, told, finish_reason, choice.get("stop_reason"), rest=rest)
    return joined(ask, delta, sampling)
