"""Requests whose answers must be those of an engine, and how answers are compared.

They are for the model of `support.tiny_chat_model`: it writes characters of several tokens, loops,
and ends some answers by itself.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/inference/v1/generate"
MODEL = "tiny"
PROMPT = [266, 224, 303]
"""Tokens of "The cat"."""
TOLERANCE = 2e-4
"""Between log-probabilities of one token: prefill and decoding add up in different orders."""


@dataclass(frozen=True)
class Case:
    """One request."""

    name: str
    path: str
    body: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def streamed(self, interval: int | None = None, **more: Any) -> "Case":
        """The same as a stream; `interval`: tokens per event."""
        body = self.body | {"stream": True} | more
        if interval is not None and self.path == GENERATE:
            body["sampling_params"] = body["sampling_params"] | {"stream_interval": interval}
        elif interval is not None:
            body["stream_interval"] = interval
        return Case(f"{self.name}, streamed", self.path, body)


def text(name: str, prompt: Any = "The cat", **fields: Any) -> Case:
    """A completion."""
    return Case(name, COMPLETIONS, {"model": MODEL, "prompt": prompt, **fields})


def chat(name: str, content: Any = "The cat", **fields: Any) -> Case:
    """A chat of one message."""
    messages = [{"role": "user", "content": content}]
    return Case(f"chat: {name}", CHAT, {"model": MODEL, "messages": messages, **fields})


def tokens(name: str, more: dict[str, Any] | None = None, **sampling: Any) -> Case:
    """Tokens in, tokens out."""
    body = {"token_ids": PROMPT, "sampling_params": sampling, **(more or {})}
    return Case(f"generate: {name}", GENERATE, body)


UNDERSTOOD = [
    text("a text", temperature=0, max_tokens=20),
    text("the default length", temperature=0),
    text("token ids", PROMPT, temperature=0, max_tokens=20, logprobs=2, return_token_ids=True),
    text("two prompts", ["The cat", "Zo"], temperature=0, max_tokens=5, logprobs=0),
    text(
        "two prompts of tokens with two samples each",
        [PROMPT, PROMPT + PROMPT],
        n=2,
        seed=3,
        max_tokens=9,
        return_token_ids=True,
        logprobs=1,
        return_tokens_as_token_ids=True,
    ),
    text("stop strings", temperature=0, max_tokens=50, stop=["fish", "🌍."]),
    text(
        "a stop string kept",
        temperature=0,
        max_tokens=50,
        stop="the 🌍",
        include_stop_str_in_output=True,
        logprobs=1,
    ),
    text("stop tokens", temperature=0, max_tokens=50, stop_token_ids=[202, 17]),
    text("its own end", temperature=1, seed=5, max_tokens=400),
    text(
        "special tokens shown",
        temperature=1,
        seed=5,
        max_tokens=100,
        ignore_eos=True,
        skip_special_tokens=False,
        min_tokens=30,
    ),
    text(
        "all that shapes a distribution",
        temperature=0.7,
        seed=5,
        max_tokens=30,
        top_p=0.9,
        top_k=5,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        logit_bias={"20": 1.5},
    ),
    Case("no model named", COMPLETIONS, {"prompt": "The cat", "temperature": 0}),
    chat("a message", temperature=0, max_tokens=20),
    chat("text parts", [{"type": "text", "text": "The cat"}], temperature=0, max_tokens=5),
    chat(
        "log-probabilities",
        temperature=0,
        max_completion_tokens=20,
        logprobs=True,
        top_logprobs=3,
        return_token_ids=True,
    ),
    chat(
        "three samples",
        temperature=1,
        seed=7,
        n=3,
        max_tokens=8,
        logprobs=True,
        return_tokens_as_token_ids=True,
    ),
    chat("stop strings", temperature=0, max_tokens=60, stop=["fish", "🌍.", "nothing"]),
    chat("the prompt's text", temperature=0, max_tokens=9, return_prompt_text=True, user="me"),
    chat("no length", temperature=1, seed=2),
    tokens("plain", max_tokens=12, temperature=0),
    tokens("prompt told", {"return_token_ids": True}, max_tokens=12, temperature=0, logprobs=2),
    tokens("text", {"output_mode": "text"}, max_tokens=12, temperature=0, logprobs=2),
    tokens("two samples", max_tokens=12, temperature=1, n=2, seed=3),
    tokens("no length", temperature=1, seed=3, logprobs=0),
    tokens("stop", {"output_mode": "text"}, max_tokens=40, temperature=0, stop=["fish"]),
    tokens("stop without text", max_tokens=40, temperature=0, stop=["fish"]),
]
"""Cut into asks and put together again."""

FORWARDED = [
    text("echo", temperature=0, max_tokens=5, echo=True),
    text("prompt log-probabilities", temperature=0, max_tokens=3, prompt_logprobs=1),
    text("an unknown field", temperature=0, max_tokens=3, best_effort=True),
    text("an integer as a float", temperature=0, max_tokens=3.0),
    chat("a grammar", temperature=0, max_tokens=9, response_format={"type": "json_object"}),
]
"""Sent on as they are, and answered."""

REFUSED = [
    text("several greedy samples", temperature=0, n=2),
    text("no tokens", max_tokens=0),
    text("too hot", temperature=3),
    text("too long", max_tokens=5000),
    text("too many log-probabilities", logprobs=200),
    text("an empty prompt", ""),
    text("a length in words", max_tokens="many"),
    text("a token that is none", [[99999]]),
    text("options without a stream", stream_options={"include_usage": True}),
    Case("an unknown model", COMPLETIONS, {"model": "none", "prompt": "The cat"}),
    chat("alternatives without log-probabilities", top_logprobs=2),
    Case("chat: no messages", CHAT, {"model": MODEL, "messages": []}),
    Case("generate: no tokens", GENERATE, {"token_ids": [], "sampling_params": {}}),
]
"""Answered with an error by an engine."""

_LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
CUT = [
    text("a text", **_LONG),
    text("alternatives", PROMPT, logprobs=2, return_token_ids=True, **_LONG),
    text(
        "ids for texts",
        PROMPT,
        logprobs=0,
        return_tokens_as_token_ids=True,
        return_token_ids=True,
        **_LONG,
    ),
    text("long stop strings", stop=["fish.\n\nThe", "🌍.\n\nThe cat üb"], **_LONG),
    text("a stop string with a character of many tokens", stop=["the 🌍.", "zebra"], **_LONG),
    text(
        "a stop string kept",
        stop=["the 🌍.", "zebra"],
        include_stop_str_in_output=True,
        logprobs=1,
        **_LONG,
    ),
    text("a short stop string, not too early", stop=["\n"], min_tokens=30, **_LONG),
    text("a stop token, not too early", stop_token_ids=[17], min_tokens=16, **_LONG),
    text("repetition penalty", repetition_penalty=1.3, min_tokens=50, **_LONG),
    text("logit bias", logit_bias={"20": 3.0}, **_LONG),
    chat("a message", **_LONG),
    chat("alternatives", logprobs=True, top_logprobs=2, return_token_ids=True, **_LONG),
    chat("ids for texts", logprobs=True, return_tokens_as_token_ids=True, **_LONG),
    chat("stop strings", stop=["nothing at all. ", "the fish"], **_LONG),
    tokens("alternatives", {"return_token_ids": True}, logprobs=1, **_LONG),
    tokens("text", {"output_mode": "text"}, logprobs=1, **_LONG),
    tokens("stop", {"output_mode": "text"}, stop=["the 🌍."], **_LONG),
]
"""Greedy, so that a cut must not show."""


def differences(want: Any, got: Any, at: str = "") -> list[str]:
    """Where two answers differ; names and times do not count."""
    if isinstance(want, dict) and isinstance(got, dict):
        found = []
        for key in sorted(want.keys() | got.keys(), key=str):
            if at == "" and key in ("id", "created", "request_id"):
                continue
            if key not in want or key not in got:
                found.append(f"{at}.{key} is only in {'got' if key in got else 'want'}")
            else:
                found += differences(want[key], got[key], f"{at}.{key}")
        return found
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [d for i, (w, g) in pairs for d in differences(w, g, f"{at}[{i}]")]
    if isinstance(want, float) and isinstance(got, float) and abs(want - got) < TOLERANCE:
        return []
    same = type(want) is type(got) and want == got
    return [] if same else [f"{at}: {want!r:.300} became {got!r:.300}"]


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream by choice: all it wrote, the fields its chunks have, and what came without a choice.

    How tokens are spread over chunks depends on time.
    """
    choices: dict[int, dict[str, Any]] = defaultdict(
        lambda: {"text": "", "token_ids": [], "logprobs": [], "shapes": [], "end": None}
    )
    others = []
    for told in events:
        event = {k: v for k, v in told.items() if k not in ("id", "created", "request_id")}
        if not event.get("choices"):
            others.append(event)
            continue
        (choice,) = event["choices"]
        delta, so_far = choice.get("delta") or {}, choices[choice["index"]]
        so_far["text"] += choice.get("text") or delta.get("content") or ""
        so_far["token_ids"] += choice.get("token_ids") or []
        so_far["logprobs"] += _rows(choice.get("logprobs") or {})
        for place in (event, choice):
            if place.get("prompt_token_ids"):
                so_far["prompt_token_ids"] = place["prompt_token_ids"]
        if delta.get("role"):
            so_far["role"] = event
        shape = [sorted(place.keys() - _SOMETIMES) for place in (event, choice, delta)]
        if shape not in so_far["shapes"]:
            so_far["shapes"].append(shape)
        if choice["finish_reason"] is not None:
            rest = {k: v for k, v in choice.items() if k not in _SPREAD}
            told = {k: v for k, v in event.items() if k not in ("choices", "prompt_token_ids")}
            so_far["end"] = [rest, told]
    for choice in choices.values():
        choice["shapes"].sort(key=str)
    return {"choices": dict(choices), "others": others}


_SOMETIMES = {"prompt_token_ids", "stop_reason", "system_fingerprint"}
"""Fields of the first or the last chunk, which may be the same one."""
_SPREAD = ("text", "delta", "token_ids", "logprobs", "prompt_token_ids")


def _rows(told: dict[str, Any]) -> list[Any]:
    if "tokens" not in told:
        return told.get("content") or []
    names = ("tokens", "token_logprobs", "text_offset", "top_logprobs")
    return [list(row) for row in zip(*(told[name] for name in names), strict=True)]
