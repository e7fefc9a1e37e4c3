"""vLLM's `/inference/v1/generate`: token ids in, token ids out."""

from collections.abc import Mapping
from typing import Any

from steersman.controller.gateway.forms import answers, asking, fields
from steersman.controller.gateway.question import Form, Question
from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta
from steersman.mechanisms.http_vllm.dialects import GENERATE_PATH
from steersman.mechanisms.http_vllm.dialects.generate import GENERATE, SPANS

SAMPLING = fields.SAMPLING | {
    "n": fields.integer(1, fields.MAX_ASKS),
    "max_tokens": fields.or_null(fields.integer(1)),
    "logprobs": fields.or_null(fields.integer(0)),
    "stream_interval": fields.or_null(fields.integer(1)),
    "detokenize": fields.is_bool,
    # not null here, unlike in OpenAI's APIs
    "temperature": fields.number(0, 2),
    "top_p": fields.number(0, 1, above=True),
    "top_k": fields.integer(-1),
    "min_p": fields.number(0, 1),
    "repetition_penalty": fields.number(0, 1e6, above=True),
    "presence_penalty": fields.penalty,
    "frequency_penalty": fields.penalty,
}
FIELDS: dict[str, fields.Check] = {
    "token_ids": fields.is_tokens,
    "sampling_params": lambda value: isinstance(value, dict) and fields.understood(value, SAMPLING),
    "model": fields.or_null(fields.is_text),
    "request_id": fields.is_text,
    "stream": fields.or_null(fields.is_bool),
    "stream_options": fields.or_null(fields.is_stream_options),
    "return_token_ids": fields.or_null(fields.is_bool),
    "output_mode": fields.only("tokens", "text"),
    "cache_salt": fields.or_null(fields.is_text),
    "priority": fields.integer(-fields.INT64),
    "session_id": fields.or_null(fields.is_any_text),
    "features": fields.only(None),
    "content_parts": fields.only(None),
    "kv_transfer_params": fields.only(None),
    "ec_transfer_params": fields.only(None),
}


class _Generate:
    prefix = "generate-tokens-"

    def asks(
        self, body: dict[str, Any], raw: bytes, headers: Mapping[str, str], abilities: Abilities
    ) -> tuple[list[Ask], list[int]]:
        sampling = body.get("sampling_params")
        if (
            sampling is None
            or "token_ids" not in body
            or not abilities.model
            or not fields.understood(body, FIELDS)
            or not fields.samples_alike({"temperature": 1.0} | sampling, sampling.get("n", 1))
        ):
            return [asking.as_it_is(GENERATE_PATH, body, raw, headers)], [0]
        n = sampling.get("n", 1)
        own = asking.own_fields(body, abilities)
        own.pop("stream_options", None)
        alone = {name: value for name, value in sampling.items() if name != "n"}
        if not body.get("stream"):
            alone.pop("stream_interval", None)
        asks = [_ask(own, one, body, headers, abilities) for one in asking.seeded(alone, n)]
        return asks, [0] * n

    def whole(self, question: Question) -> bytes:
        body = question.body
        answer = {
            "request_id": question.public_id,
            "model": question.asks[0].frame["model"],
            "created": question.created_unix_s,
            "usage": answers.whole_usage(question),
            "prompt_logprobs": None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": body["token_ids"] if body.get("return_token_ids") else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": body.get("output_mode", "tokens"),
            "choices": [_choice(index, ask) for index, ask in enumerate(question.asks)],
        }
        if question.info is not None:
            answer["steersman"] = question.info
        return answers.encode(answer)

    def chunk(self, question: Question, index: int, delta: Delta, first: bool) -> list[bytes]:
        ask, body = question.asks[index], question.body
        opened = question.notes is not None
        stream = answers.stream_of(question, "")
        progress = stream.of(index, ask.body["sampling_params"])
        finish_reason = answers.finish_of(delta)
        text = progress.release(delta, ends=finish_reason is not None)
        if not (delta.token_ids or text or finish_reason):
            return []
        told = {"text": text} if body.get("output_mode") == "text" else {}
        spans = None if finish_reason is None else ask.frame.get(SPANS)
        choice = _fields(
            index, delta.token_ids, finish_reason, delta.stop_reason, spans
        ) | told | {"logprobs": _logprobs([delta], ask)}  # fmt: skip
        usage = None
        if fields.wants_usage(body)[1]:
            usage = answers.counts(len(body["token_ids"]), progress.tokens) | answers.NO_DETAILS
        chunk: dict[str, Any] = {"request_id": question.public_id, "usage": usage}
        if body.get("return_token_ids") and not opened:
            chunk["prompt_token_ids"] = body["token_ids"]
        chunk |= {"output_mode": body.get("output_mode", "tokens"), "choices": [choice]}
        return [answers.event(chunk)]

    def closing(self, question: Question) -> list[bytes]:
        head = {
            "request_id": question.public_id,
            "output_mode": question.body.get("output_mode", "tokens"),
        }
        return answers.closing(question, head)


def _ask(
    own: dict[str, Any],
    sampling: dict[str, Any],
    body: dict[str, Any],
    headers: Mapping[str, str],
    abilities: Abilities,
) -> Ask:
    prompt = body["token_ids"]
    stop = sampling.get("stop") and body.get("output_mode") != "text"
    most = sampling.get("max_tokens") or max(abilities.max_model_len - len(prompt), 1)
    return Ask(
        dialect=GENERATE,
        path=GENERATE_PATH,
        body=own | {"sampling_params": sampling},
        headers=headers,
        max_tokens=most,
        streamed=body.get("stream") is True,
        textless=body.get("output_mode") != "text",
        continuable=fields.continuable(sampling) and not stop,
        prompt_token_ids=prompt,
        frame={"model": abilities.model},
    )


def _fields(
    index: int,
    token_ids: list[int],
    finish_reason: str | None,
    stop_reason: int | str | None,
    spans: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    return {
        "index": index,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "token_ids": token_ids,
        "routed_experts": None,
        "sampling_mask": None,
        SPANS: spans,
    }


def _choice(index: int, ask: Ask) -> dict[str, Any]:
    last = answers.last_delta(ask)
    choice = _fields(
        index, ask.token_ids, last.finish_reason, last.stop_reason, ask.frame.get(SPANS)
    )
    if ask.body.get("output_mode") == "text":
        choice["text"] = answers.whole_text(ask)
    choice["logprobs"] = _logprobs(ask.deltas, ask)
    return choice


def _logprobs(deltas: list[Delta], ask: Ask) -> dict[str, Any] | None:
    if ask.body["sampling_params"].get("logprobs") is None:
        return None
    content: list[Any] = []
    for delta in deltas:
        if delta.logprobs:
            content += delta.logprobs["content"]
    return {"content": content}


FORM: Form = _Generate()
