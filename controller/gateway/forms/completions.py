"""`/v1/completions`: prompts as texts or token ids, several at once, each with n samples."""

from collections.abc import Mapping
from typing import Any

from steersman.controller.gateway.forms import answers, asking, fields
from steersman.controller.gateway.forms.answers import Progress
from steersman.controller.gateway.question import Form, Question
from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta
from steersman.mechanisms.http_vllm.dialects import COMPLETIONS_PATH
from steersman.mechanisms.http_vllm.dialects.completions import COMPLETIONS
from steersman.mechanisms.http_vllm.dialects.logprobs import with_ids

KIND = "text_completion"
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, and vLLM's."""

FIELDS = fields.COMMON | {
    "prompt": lambda value: True,  # `prompts_of` looks
    "logprobs": fields.or_null(fields.integer(0)),
    "suffix": fields.only(None),
    "prompt_embeds": fields.only(None),
}


def prompts_of(prompt: Any) -> list[str] | list[list[int]] | None:
    """The single prompts; None: it is none of the four kinds."""
    if fields.is_text(prompt):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        return None
    if fields.is_tokens(prompt):
        return [prompt]
    if all(map(fields.is_text, prompt)) or all(map(fields.is_tokens, prompt)):
        return prompt
    return None


class _Completions:
    prefix = "cmpl-"

    def asks(
        self, body: dict[str, Any], raw: bytes, headers: Mapping[str, str], abilities: Abilities
    ) -> tuple[list[Ask], list[int]]:
        prompts, n = prompts_of(body.get("prompt")), body.get("n", 1)
        if (
            prompts is None
            or not abilities.token_ids
            or not fields.understood(body, FIELDS)
            or len(prompts) * n > fields.MAX_ASKS
            or not fields.samples_alike(body, n)
            or (body.get("stream_options") and not body.get("stream"))
        ):
            return [asking.as_it_is(COMPLETIONS_PATH, body, raw, headers)], [0]
        own, asks = asking.own_fields(body, abilities), []
        streamed = body.get("stream") is True
        for prompt in prompts:
            asks += [_ask(one, prompt, headers, streamed=streamed) for one in asking.seeded(own, n)]
        return asks, [index // n for index in range(len(asks))]

    def whole(self, question: Question) -> bytes:
        ids = bool(question.body.get("return_token_ids"))
        answer = answers.head_of(question, KIND) | {
            "choices": [_choice(index, ask, ids) for index, ask in enumerate(question.asks)],
            "service_tier": None,
            "system_fingerprint": answers.fingerprint(question),
            "usage": answers.whole_usage(question),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": answers.metrics_of(question),
        }
        if question.info is not None:
            answer["steersman"] = question.info
        return answers.encode(answer)

    def chunk(self, question: Question, index: int, delta: Delta, first: bool) -> list[bytes]:
        ask, body = question.asks[index], question.body
        stream = answers.stream_of(question, KIND)
        progress = stream.of(index, ask.body)
        finish_reason, ids = answers.finish_of(delta), body.get("return_token_ids")
        text = progress.release(delta, ends=finish_reason is not None)
        if not (delta.token_ids or text or finish_reason):
            return []
        chunk = stream.head | {
            "choices": [
                {
                    "index": index,
                    "text": text,
                    "logprobs": _logprobs([delta], ask, progress),
                    "finish_reason": finish_reason,
                    "stop_reason": delta.stop_reason,
                    "prompt_token_ids": ask.prompt_token_ids if ids and first else None,
                    "token_ids": delta.token_ids if ids else None,
                }
            ]
        }
        at_end, in_chunks = fields.wants_usage(body)
        if finish_reason is not None and not at_end and "system_fingerprint" in ask.frame:
            chunk["system_fingerprint"] = ask.frame["system_fingerprint"]
        if in_chunks:
            chunk["usage"] = answers.counts(ask.prompt_tokens, progress.tokens)
        return [answers.event(chunk)]

    def closing(self, question: Question) -> list[bytes]:
        return answers.closing(question, answers.head_of(question, KIND))


def _ask(
    body: dict[str, Any],
    prompt: str | list[int],
    headers: Mapping[str, str],
    *,
    streamed: bool,
) -> Ask:
    told = body.get("max_tokens")
    ask = Ask(
        dialect=COMPLETIONS,
        path=COMPLETIONS_PATH,
        body=body | {"prompt": prompt},
        headers=headers,
        max_tokens=DEFAULT_MAX_TOKENS if told is None else told,
        streamed=streamed,
        continuable=fields.continuable(body),
    )
    if isinstance(prompt, str):
        ask.estimated_prompt_tokens = asking.guess(len(prompt.encode()))
    else:
        ask.prompt_token_ids = prompt
    return ask


def _choice(index: int, ask: Ask, ids: bool) -> dict[str, Any]:
    last = answers.last_delta(ask)
    return {
        "index": index,
        "text": answers.whole_text(ask),
        "logprobs": _logprobs(ask.deltas, ask, Progress(0)),
        "finish_reason": last.finish_reason,
        "stop_reason": last.stop_reason,
        "token_ids": ask.token_ids if ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": ask.prompt_token_ids if ids else None,
        "routed_experts": None,
    }


def _logprobs(deltas: list[Delta], ask: Ask, progress: Progress) -> dict[str, Any] | None:
    """Joined; each token's text begins where the one before it ends, whichever engine wrote it."""
    if ask.body.get("logprobs") is None:
        return None
    as_ids = bool(ask.body.get("return_tokens_as_token_ids"))
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[Any] = []
    for delta in deltas:
        if told := delta.logprobs:
            if as_ids:
                told = with_ids(told, delta.token_ids)
            tokens += told["tokens"]
            values += told["token_logprobs"]
            tops += told["top_logprobs"]
    offsets, offset = [], progress.text_offset
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    progress.text_offset = offset
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": tops,
    }


FORM: Form = _Completions()
