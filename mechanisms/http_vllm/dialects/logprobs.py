"""Log-probabilities of tokens in the forms that the APIs have for them.

Completions have parallel lists, the alternatives keyed by their text; chats and `generate` have one
entry per token.
"""

from typing import Any

AS_ID = "token_id:"
"""Begins a token's text where the client asked for ids in place of texts."""


def texts_of(told: Any) -> list[str] | None:
    """Text of each token, empty for a part of a character; None where it is not told."""
    if not told:
        return None
    texts = told.get("tokens")
    if texts is None:
        content = told.get("content") or []
        if any(entry.get("bytes") is None for entry in content):
            return None
        return [bytes(entry["bytes"]).decode(errors="replace") for entry in content]
    return None if texts and texts[0].startswith(AS_ID) else texts


def values_of(told: Any) -> list[float]:
    """Log-probability of each token."""
    if not told:
        return []
    if "token_logprobs" in told:
        return [-9999.0 if value is None else value for value in told["token_logprobs"]]
    return [entry["logprob"] for entry in told.get("content") or ()]


def without_first(told: Any, tokens: int) -> Any:
    """Those of the tokens after the first `tokens`."""
    if not told:
        return told
    return {
        name: value[tokens:] if isinstance(value, list) else value for name, value in told.items()
    }


def with_first_text(told: Any, text: str) -> Any:
    """The first token completes a character, which its engine did not see the beginning of."""
    texts = texts_of(told)
    if not texts or texts[0]:
        return told
    if "tokens" in told:
        first = {text if key == "" else key: p for key, p in told["top_logprobs"][0].items()}
        return told | {
            "tokens": [text, *texts[1:]],
            "top_logprobs": [first, *told["top_logprobs"][1:]],
        }
    entry, *others = told["content"]
    if top := entry.get("top_logprobs"):
        entry = entry | {"top_logprobs": [_repaired(top[0], text), *top[1:]]}
    return told | {"content": [_repaired(entry, text), *others]}


def with_texts(body: dict[str, Any]) -> dict[str, Any]:
    """A completion or a `generate` that tells log-probabilities, and the tokens by their texts."""
    told = body | {"logprobs": body.get("logprobs") or 0}
    told.pop("return_tokens_as_token_ids", None)
    return told


def with_ids(told: Any, token_ids: list[int]) -> Any:
    """A completion's, with ids in place of texts, which come only where no alternatives do."""
    if not token_ids or told["tokens"][0].startswith(AS_ID):
        return told
    names = [f"{AS_ID}{token}" for token in token_ids]
    tops = [{name: value} for name, value in zip(names, told["token_logprobs"], strict=True)]
    return told | {"tokens": names, "top_logprobs": tops}


def as_chat(told: Any, token_ids: list[int], top: int, *, as_ids: bool) -> dict[str, Any] | None:
    """A completion's log-probabilities as a chat tells them."""
    if not told:
        return None
    content = []
    for index, (text, value) in enumerate(zip(told["tokens"], told["token_logprobs"], strict=True)):
        entry = _entry(text, value)
        if as_ids:
            entry["token"] = f"{AS_ID}{token_ids[index]}"
        entry["top_logprobs"] = _alternatives(told["top_logprobs"][index] or {}, text, value)[:top]
        content.append(entry)
    return {"content": content}


def _alternatives(told: dict[str, float], text: str, value: float | None) -> list[dict[str, Any]]:
    """In the order of a chat: the sampled token, then the likeliest.

    Alternatives of the same text, as parts of characters often are, are one entry in `told`.  Where
    the sampled token is one of two, both can be told apart; others stay one.
    """
    if value is None or not told or told.get(text, value) == value:
        return [_entry(*pair) for pair in told.items()]
    first, *others = told.items()
    others.append(first)
    others.sort(key=lambda pair: pair[1], reverse=True)
    return [_entry(text, value), *(_entry(*pair) for pair in others)]


def _repaired(entry: dict[str, Any], text: str) -> dict[str, Any]:
    return entry | {"token": text, "bytes": list(text.encode())}


def _entry(text: str, value: float | None) -> dict[str, Any]:
    return {
        "token": text,
        "logprob": -9999.0 if value is None else value,
        "bytes": list(text.encode("utf-8", errors="replace")),
    }
