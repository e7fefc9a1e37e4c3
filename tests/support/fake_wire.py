"""The words of vLLM 0.32's HTTP API: what it reads from a body, and the JSON that it writes.

Field by field as `model_dump_json` writes them there: a streamed chunk holds the fields that were
set, a whole answer holds all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.fake_engine import Piece, Stream
from support.fake_model import encode, token_text

FINGERPRINT = "vllm-0.32.0-fake"
MAX_SAMPLES = 1024


class BadRequestError(Exception):
    """The body is wrong."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        kind: str = "BadRequestError",
        status: int = 400,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, kind, status, param)


def error_body(message: str, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    """An error as vLLM words it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """As in every answer."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def chunk_usage(prompt: int, completion: int) -> dict[str, Any]:
    """As in a chunk."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }


def wrong(field: str, told: str, value: Any) -> BadRequestError:
    """A field of the wrong type, as pydantic's errors come out."""
    return BadRequestError(
        f"1 validation error:\n  {{'type': '{told}', 'loc': 'body.{field}', 'input': {value!r}}}",
        f"body.{field}",
        kind="Bad Request",
    )


def whole_number(body: dict[str, Any], field: str, default: int, least: int) -> int:
    """An integer field, or its default."""
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(field, "int_type", value)
    if value < least:
        raise BadRequestError(
            f"{field} must be at least {least}, got {value}. (parameter={field}, value={value})",
            field,
        )
    return value


def prompts_of(body: dict[str, Any]) -> list[list[int]]:
    """`prompt` of a completion as token ids."""
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return [encode(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(p, int) and not isinstance(p, bool) and p >= 0 for p in prompt):
            return [prompt]
        if all(isinstance(p, str) for p in prompt):
            return [encode(p) for p in prompt]
        if all(isinstance(p, list) and p and all(type(t) is int for t in p) for p in prompt):
            return prompt
    if prompt is None or prompt == "":
        raise BadRequestError(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            "prompt",
        )
    raise wrong("prompt", "list_type", prompt)


def chat_prompt(body: dict[str, Any]) -> list[int]:
    """`messages` of a chat through the template."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "missing" if messages is None else "list_type", messages)
    text = ""
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise wrong("messages.0.role", "missing", message)
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content)
        text += f"<|{message['role']}|>{content or ''}\n"
    return encode(text + "<|assistant|>")


def streams_of(
    body: dict[str, Any],
    prompts: Sequence[list[int]],
    abort_ids: Sequence[str],
    max_tokens: int,
    *,
    max_model_len: int,
    streamed: bool,
    wants_logprobs: bool,
) -> list[Stream]:
    """One per prompt and sample."""
    samples = whole_number(body, "n", 1, 1)
    if samples > MAX_SAMPLES:
        raise BadRequestError(f"n must be at most {MAX_SAMPLES}, got {samples}.")
    if samples > 1 and body.get("temperature") == 0:
        raise BadRequestError(f"n must be 1 when using greedy sampling, got {samples}.")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise wrong("stop", "list_type", stop)
    if not all(stop):
        raise BadRequestError("stop cannot contain an empty string.", "stop")
    streams: list[Stream] = []
    if max_tokens > max_model_len:
        raise BadRequestError(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
            "max_tokens",
        )
    for prompt, abort_id in zip(prompts, abort_ids, strict=True):
        if len(prompt) + max_tokens > max_model_len:
            raise BadRequestError(
                f"This model's maximum context length is {max_model_len} tokens. However, you "
                f"requested {max_tokens} output tokens and your prompt contains at least "
                f"{len(prompt)} input tokens.",
                "input_tokens",
            )
        streams += [
            Stream(
                prompt,
                max_tokens,
                abort_id,
                index=len(streams) + sample,
                interval=whole_number(body, "stream_interval", 1, 1),
                stop=stop,
                keep_stop=bool(body.get("include_stop_str_in_output")),
                stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
                ignore_eos=bool(body.get("ignore_eos")),
                wants_logprobs=wants_logprobs,
                whole=not streamed,
            )
            for sample in range(samples)
        ]
    return streams


def completion_logprobs(piece: Piece, top: int, offset: int) -> dict[str, Any]:
    """As completions have them."""
    tokens = [token_text(token) for token in piece.token_ids]
    offsets = [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))]
    return {
        "text_offset": offsets,
        "token_logprobs": piece.logprobs,
        "tokens": tokens,
        "top_logprobs": [
            {word: value, **{token_text(90 + rank): value - rank - 1 for rank in range(top)}}
            for word, value in zip(tokens, piece.logprobs, strict=True)
        ],
    }


def _entry(token: int, value: float) -> dict[str, Any]:
    text = token_text(token)
    return {"token": text, "logprob": value, "bytes": list(text.encode())}


def chat_logprobs(piece: Piece, top: int) -> dict[str, Any]:
    """As chats have them."""
    return {
        "content": [
            _entry(token, value)
            | {"top_logprobs": [_entry(90 + rank, value - rank) for rank in range(top)]}
            for token, value in zip(piece.token_ids, piece.logprobs, strict=True)
        ]
    }


def generate_logprobs(piece: Piece) -> dict[str, Any]:
    """As tokens in, tokens out has them."""
    return {
        "content": [
            {
                "token_id": token,
                "logprob": value,
                "rank": 1,
                "top_logprobs": [{"token_id": token, "logprob": value, "rank": 1}],
            }
            for token, value in zip(piece.token_ids, piece.logprobs, strict=True)
        ]
    }


@dataclass
class Form:
    """How one route writes: subclasses know their fields."""

    body: dict[str, Any]
    request_id: str
    model: str
    created: int
    streams: list[Stream]
    samples: int = 1

    def __post_init__(self) -> None:
        self.ids = bool(self.body.get("return_token_ids"))
        self.offsets = [0] * len(self.streams)
        self.echoed: set[int] = set()

    @property
    def written(self) -> int:
        """Tokens of all streams."""
        return sum(len(stream.tokens) for stream in self.streams)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts; samples share theirs."""
        return sum(len(stream.prompt) for stream in self.streams[:: self.samples])

    def signed(self, piece: Piece) -> dict[str, Any]:
        """The fingerprint stands on the last chunk, unless one with the usage follows."""
        follows = (self.body.get("stream_options") or {}).get("include_usage")
        ends = piece.finish_reason is not None and not follows
        return {"system_fingerprint": FINGERPRINT} if ends else {}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token."""
        return []

    def chunk(self, stream: Stream, piece: Piece) -> dict[str, Any]:
        """One piece as a chunk."""
        raise NotImplementedError

    def closing(self) -> dict[str, Any]:
        """The chunk with the usage."""
        raise NotImplementedError

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The answer that is not streamed."""
        raise NotImplementedError


class CompletionForm(Form):
    """`/v1/completions`."""

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def _logprobs(self, stream: Stream, piece: Piece) -> dict[str, Any] | None:
        if not stream.wants_logprobs:
            return None
        told = completion_logprobs(piece, self.body["logprobs"], self.offsets[stream.index])
        self.offsets[stream.index] += sum(map(len, told["tokens"]))
        return told

    def chunk(self, stream: Stream, piece: Piece) -> dict[str, Any]:
        first = stream.index not in self.echoed
        self.echoed.add(stream.index)
        choice = {
            "index": stream.index,
            "text": piece.text,
            "logprobs": self._logprobs(stream, piece),
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "prompt_token_ids": stream.prompt if self.ids and first else None,
            "token_ids": piece.token_ids if self.ids else None,
        }
        return self._head() | {"choices": [choice]} | self.signed(piece)

    def closing(self) -> dict[str, Any]:
        return self._head() | {
            "choices": [],
            "usage": chunk_usage(self.prompt_tokens, self.written),
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choices = [
            {
                "index": stream.index,
                "text": piece.text,
                "logprobs": self._logprobs(stream, piece),
                "finish_reason": piece.finish_reason,
                "stop_reason": piece.stop_reason,
                "token_ids": piece.token_ids if self.ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": stream.prompt if self.ids else None,
                "routed_experts": None,
            }
            for stream, piece in zip(self.streams, pieces, strict=True)
        ]
        return self._head() | {
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage(self.prompt_tokens, self.written),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class ChatForm(Form):
    """`/v1/chat/completions`."""

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head("chat.completion.chunk") | {"choices": choices}

    def _logprobs(self, stream: Stream, piece: Piece) -> dict[str, Any] | None:
        top = self.body.get("top_logprobs") or 0
        return chat_logprobs(piece, top) if stream.wants_logprobs else None

    def opening(self) -> list[dict[str, Any]]:
        return [
            self._chunk(
                [
                    {
                        "index": stream.index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ]
            )
            | {"prompt_token_ids": stream.prompt if self.ids else None, "prompt_text": None}
            for stream in self.streams
        ]

    def chunk(self, stream: Stream, piece: Piece) -> dict[str, Any]:
        choice = {
            "index": stream.index,
            "delta": {"content": piece.text},
            "logprobs": self._logprobs(stream, piece),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        choice["token_ids"] = piece.token_ids if self.ids else None
        return self._chunk([choice]) | self.signed(piece)

    def closing(self) -> dict[str, Any]:
        return self._chunk([]) | {
            "usage": chunk_usage(self.prompt_tokens, self.written),
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choices = [
            {
                "index": stream.index,
                "message": {
                    "role": "assistant",
                    "content": piece.text,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": self._logprobs(stream, piece),
                "finish_reason": piece.finish_reason,
                "stop_reason": piece.stop_reason,
                "token_ids": piece.token_ids if self.ids else None,
                "routed_experts": None,
            }
            for stream, piece in zip(self.streams, pieces, strict=True)
        ]
        return self._head("chat.completion") | {
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage(self.prompt_tokens, self.written),
            "prompt_logprobs": None,
            "prompt_token_ids": self.streams[0].prompt if self.ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class GenerateForm(Form):
    """`/inference/v1/generate`."""

    def _choice(self, stream: Stream, piece: Piece) -> dict[str, Any]:
        return {
            "index": stream.index,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "token_ids": piece.token_ids,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": piece.spans,
            "logprobs": generate_logprobs(piece) if stream.wants_logprobs else None,
        }

    def chunk(self, stream: Stream, piece: Piece) -> dict[str, Any]:
        told: dict[str, Any] = {"request_id": self.request_id, "usage": None}
        if self.ids and not self.echoed:
            self.echoed.add(0)
            told["prompt_token_ids"] = stream.prompt
        return told | {"output_mode": "tokens", "choices": [self._choice(stream, piece)]}

    def closing(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "usage": chunk_usage(self.prompt_tokens, self.written),
            "output_mode": "tokens",
            "choices": [],
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "model": self.model,
            "created": self.created,
            "usage": usage(self.prompt_tokens, self.written),
            "prompt_logprobs": None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": self.streams[0].prompt if self.ids else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [
                self._choice(stream, piece)
                for stream, piece in zip(self.streams, pieces, strict=True)
            ],
        }
