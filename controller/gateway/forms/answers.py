"""What the answers of all forms have in common: texts, counts, and how far a stream is."""

from dataclasses import dataclass
from typing import Any

import msgspec

from steersman.controller.gateway.forms.fields import wants_usage
from steersman.controller.gateway.question import Question
from steersman.mechanisms.http_vllm.ask import Ask, Delta
from steersman.mechanisms.http_vllm.dialects.seam import AHEAD, DROPPED
from steersman.mechanisms.http_vllm.dialects.text import LEVEL, held_back, text_of

DONE = b"data: [DONE]\n\n"

NO_DETAILS: dict[str, Any] = {"prompt_tokens_details": None, "completion_tokens_details": None}
"""As answers in one piece have them."""

NO_PROMPT_DETAILS: dict[str, Any] = {
    "cached_tokens": None,
    "created_cache_tokens": None,
    "multimodal_tokens": None,
}

encode = msgspec.json.Encoder().encode


def event(payload: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + encode(payload) + b"\n\n"


def whole_text(ask: Ask) -> str:
    """Of an ask that has ended."""
    text = text_of(ask)
    dropped = ask.deltas[-1].rest.get(DROPPED) if ask.deltas else 0
    return text[:-dropped] if dropped else text


def finish_of(delta: Delta) -> str | None:
    """Why the ask has ended; None: it has not, though its attempt may have been aborted."""
    return None if LEVEL in delta.rest and delta.finish_reason == "abort" else delta.finish_reason


def last_delta(ask: Ask) -> Delta:
    """The one that tells how it ended."""
    return ask.deltas[-1] if ask.deltas else Delta([], finish_reason="abort")


def frame_value(question: Question, name: str) -> Any:
    """A field that an engine told with the answer of any of the asks, the first that has it."""
    for ask in question.asks:
        if (value := ask.frame.get(name)) is not None:
            return value
    return None


def model_of(question: Question) -> str:
    """As an engine names it."""
    told = frame_value(question, "model")
    return told if told is not None else str(question.asks[0].body.get("model") or "")


def created(question: Question) -> int:
    """When an engine, or the gateway, took it in."""
    told = frame_value(question, "created")
    return told if told is not None else question.created_unix_s


def fingerprint(question: Question) -> str | None:
    """The engines' version."""
    told: str | None = frame_value(question, "system_fingerprint")
    return told


def prompt_tokens(question: Question) -> int:
    """Of all prompts; samples share theirs."""
    counts: dict[int, int] = {}
    for ask, prompt in zip(question.asks, question.group_of, strict=True):
        if prompt not in counts or ask.prompt_token_ids is not None:
            counts[prompt] = ask.prompt_tokens
    return sum(counts.values())


def counts(prompt: int, written: int) -> dict[str, Any]:
    """The usage as a chunk has it."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + written,
        "completion_tokens": written,
    }


def total_counts(question: Question) -> dict[str, Any]:
    """The usage of the whole, with the details that an engine told."""
    usage = counts(prompt_tokens(question), sum(len(ask.token_ids) for ask in question.asks))
    details = _details(question)
    return usage if details is None else usage | {"prompt_tokens_details": details}


def whole_usage(question: Question) -> dict[str, Any]:
    """The usage as an answer in one piece has it."""
    usage = NO_DETAILS | total_counts(question)
    if (details := usage["prompt_tokens_details"]) is not None:
        usage["prompt_tokens_details"] = NO_PROMPT_DETAILS | details
    return usage


def metrics_of(question: Question) -> Any:
    """An engine's figures of the request; it tells none of several samples."""
    return frame_value(question, "metrics") if len(question.asks) == 1 else None


def _details(question: Question) -> Any:
    usage = frame_value(question, "usage")
    return None if usage is None else usage.get("prompt_tokens_details")


def closing(question: Question, head: dict[str, Any]) -> list[bytes]:
    """The end of a stream of one of OpenAI's APIs; `head`: fields that each chunk has."""
    events = []
    if wants_usage(question.body)[0]:
        chunk = head | {"choices": [], "usage": total_counts(question)}
        for name, value in (
            ("system_fingerprint", fingerprint(question)),
            ("metrics", metrics_of(question)),
        ):
            if value is not None:
                chunk[name] = value
        events.append(event(chunk))
    if question.info is not None:
        events.append(event(head | {"choices": [], "steersman": question.info}))
    return [*events, DONE]


@dataclass(slots=True)
class Progress:
    """How far the stream of one ask is."""

    hold: int
    """Characters that its client must not see before the end, since they may become a stop
    string."""
    tokens: int = 0
    text_offset: int = 0
    pending: str = ""
    ahead: bool = False
    """Text came that an engine would have kept back: from now on it is kept back here."""

    def release(self, delta: Delta, *, ends: bool) -> str:
        """Text to be sent now."""
        self.tokens += len(delta.token_ids)
        text = self.pending + delta.text
        if dropped := delta.rest.get(DROPPED):
            text = text[:-dropped]
        self.ahead = self.ahead or LEVEL in delta.rest or AHEAD in delta.rest
        size = (
            len(text) if ends or not (self.hold and self.ahead) else max(len(text) - self.hold, 0)
        )
        self.pending = text[size:]
        return text[:size]


@dataclass(slots=True)
class Stream:
    """How far the stream of an answer is; `Question.notes`."""

    head: dict[str, Any]
    """Fields that every chunk has."""
    progress: dict[int, Progress]
    """By the number of the ask."""

    def of(self, index: int, sampling: dict[str, Any]) -> Progress:
        """Of ask `index`."""
        progress = self.progress.get(index)
        if progress is None:
            progress = self.progress[index] = Progress(held_back(sampling))
        return progress


def stream_of(question: Question, kind: str) -> Stream:
    """To be called when some ask has written."""
    stream: Stream | None = question.notes
    if stream is None:
        stream = question.notes = Stream(head_of(question, kind), {})
    return stream


def head_of(question: Question, kind: str) -> dict[str, Any]:
    """Fields that answers of OpenAI's APIs begin with."""
    return {
        "id": question.public_id,
        "object": kind,
        "created": created(question),
        "model": model_of(question),
    }
