"""`/v1/chat/completions`: messages in, n messages out."""

from collections.abc import Mapping
from typing import Any

from steersman.controller.gateway.forms import answers, asking, fields
from steersman.controller.gateway.question import Form, Question
from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta
from steersman.mechanisms.http_vllm.dialects import CHAT_PATH
from steersman.mechanisms.http_vllm.dialects.chat import CHAT, SILENT

KIND = "chat.completion.chunk"
UNBOUNDED = 32_768
"""Tokens that an answer may have at most where nobody says how many."""

NO_REASONING: dict[str, Any] = {"completion_tokens_details": None}
"""In the usage of a chunk, where no reasoning is told apart."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def is_message(value: Any) -> bool:
    """With a text, or several; an image or a sound is for the engine alone."""
    if not isinstance(value, dict) or not fields.is_text(value.get("role")):
        return False
    content = value.get("content")
    return content is None or isinstance(content, str) or fields.list_of(_is_text_part, 1)(content)


def _is_text_part(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("type") == "text"
        and isinstance(value.get("text"), str)
    )


FIELDS = fields.COMMON | {
    "messages": fields.list_of(is_message, 1),
    "n": fields.or_null(fields.integer(1, fields.MAX_ASKS)),
    "max_completion_tokens": fields.or_null(fields.integer(1)),
    "logprobs": fields.or_null(fields.is_bool),
    "top_logprobs": fields.or_null(fields.integer(0)),
    "tools": fields.only(None),
    "tool_choice": fields.only("none"),
    "parallel_tool_calls": fields.or_null(fields.is_bool),
    "include_reasoning": fields.only(True),
    "reasoning_effort": fields.only(None, *EFFORTS),
    "add_generation_prompt": fields.is_bool,
    "continue_final_message": fields.is_bool,
    "chat_template_kwargs": fields.or_null(lambda value: isinstance(value, dict)),
    "return_prompt_text": fields.or_null(fields.is_bool),
}


class _Chat:
    prefix = "chatcmpl-"

    def asks(
        self, body: dict[str, Any], raw: bytes, headers: Mapping[str, str], abilities: Abilities
    ) -> tuple[list[Ask], list[int]]:
        n = body.get("n")
        n = 1 if n is None else n
        if (
            abilities.reasoning_parser
            or not abilities.token_ids
            or "messages" not in body
            or not fields.understood(body, FIELDS)
            or not fields.samples_alike(body, n)
            or (body.get("stream_options") and not body.get("stream"))
            or (body.get("top_logprobs") and not body.get("logprobs"))
        ):
            return [asking.as_it_is(CHAT_PATH, body, raw, headers)], [0]
        own = asking.own_fields(body, abilities)
        streamed = body.get("stream") is True
        asks = [_ask(one, headers, abilities, streamed=streamed) for one in asking.seeded(own, n)]
        return asks, [0] * n

    def whole(self, question: Question) -> bytes:
        body = question.body
        ids = bool(body.get("return_token_ids"))
        role = answers.frame_value(question, "role") or "assistant"
        answer = answers.head_of(question, "chat.completion") | {
            "choices": [_choice(index, ask, role, ids) for index, ask in enumerate(question.asks)],
            "service_tier": None,
            "system_fingerprint": answers.fingerprint(question),
            "usage": answers.whole_usage(question),
            "prompt_logprobs": None,
            "prompt_token_ids": _prompt_ids(question) if ids else None,
            "prompt_text": answers.frame_value(question, "prompt_text"),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": answers.metrics_of(question),
        }
        if question.info is not None:
            answer["steersman"] = question.info
        return answers.encode(answer)

    def chunk(self, question: Question, index: int, delta: Delta, first: bool) -> list[bytes]:
        ask, body = question.asks[index], question.body
        begins = question.notes is None
        stream = answers.stream_of(question, KIND)
        events = _roles(question, stream.head) if begins else []
        progress = stream.of(index, ask.body)
        finish_reason = answers.finish_of(delta)
        text = progress.release(delta, ends=finish_reason is not None)
        silent = SILENT in delta.rest and not text
        of_use = not silent or body.get("return_token_ids") or body.get("logprobs")
        if not (finish_reason or text or (delta.token_ids and of_use)):
            return events
        choice: dict[str, Any] = {
            "index": index,
            "delta": {} if silent else {"content": text},
            "logprobs": _logprobs([delta], ask),
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = delta.token_ids if body.get("return_token_ids") else None
        chunk = stream.head | {"choices": [choice]}
        at_end, in_chunks = fields.wants_usage(body)
        if finish_reason is not None and not at_end and "system_fingerprint" in ask.frame:
            chunk["system_fingerprint"] = ask.frame["system_fingerprint"]
        if in_chunks:
            chunk["usage"] = answers.counts(ask.prompt_tokens, progress.tokens) | NO_REASONING
        return [*events, answers.event(chunk)]

    def closing(self, question: Question) -> list[bytes]:
        return answers.closing(question, answers.head_of(question, KIND))


def _ask(
    body: dict[str, Any], headers: Mapping[str, str], abilities: Abilities, *, streamed: bool
) -> Ask:
    told = body.get("max_completion_tokens")
    told = body.get("max_tokens") if told is None else told
    most = told or abilities.max_model_len
    texts = body.get("return_tokens_as_token_ids") and body.get("top_logprobs")
    return Ask(
        dialect=CHAT,
        path=CHAT_PATH,
        body=body,
        headers=headers,
        max_tokens=most or UNBOUNDED,
        streamed=streamed,
        # a completion tells ids or texts of the alternatives, where a chat tells both
        continuable=fields.continuable(body) and bool(most) and not texts,
        estimated_prompt_tokens=asking.guess(sum(map(_size, body["messages"]))),
    )


def _size(message: dict[str, Any]) -> int:
    content = message.get("content") or ""
    if isinstance(content, str):
        return len(content.encode())
    return sum(len(part["text"].encode()) for part in content)


def _prompt_ids(question: Question) -> list[int] | None:
    known = (ask.prompt_token_ids for ask in question.asks if ask.prompt_token_ids is not None)
    return next(known, None)


def _roles(question: Question, head: dict[str, Any]) -> list[bytes]:
    """The first chunk of each choice, sent as soon as an engine has begun with any."""
    body = question.body
    role = answers.frame_value(question, "role") or "assistant"
    rest: dict[str, Any] = {
        "prompt_token_ids": _prompt_ids(question) if body.get("return_token_ids") else None,
        "prompt_text": answers.frame_value(question, "prompt_text"),
    }
    if fields.wants_usage(body)[1]:
        rest["usage"] = answers.counts(answers.prompt_tokens(question), 0) | NO_REASONING
    events = []
    for index in range(len(question.asks)):
        choice = {
            "index": index,
            "delta": {"role": role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        events.append(answers.event(head | {"choices": [choice]} | rest))
    return events


def _choice(index: int, ask: Ask, role: str, ids: bool) -> dict[str, Any]:
    last = answers.last_delta(ask)
    return {
        "index": index,
        "message": {
            "role": role,
            "content": answers.whole_text(ask),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": _logprobs(ask.deltas, ask),
        "finish_reason": last.finish_reason,
        "stop_reason": last.stop_reason,
        "token_ids": ask.token_ids if ids else None,
        "routed_experts": None,
    }


def _logprobs(deltas: list[Delta], ask: Ask) -> dict[str, Any] | None:
    if not ask.body.get("logprobs"):
        return None
    content: list[Any] = []
    for delta in deltas:
        if delta.logprobs:
            content += delta.logprobs["content"]
    return {"content": content}


FORM: Form = _Chat()
