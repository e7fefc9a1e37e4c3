"""An engine that writes given tokens, with vLLM's way of turning tokens into text.

A token is any piece of UTF-8, so that characters are spread over tokens at will.  Text comes as
vLLM 0.32's fast detokenizer gives it (`tokenizers`' DecodeStream, primed with the prompt), stop
strings are looked for and kept back as there, and the texts of log-probabilities are completed
from the tokens before as there.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from support.form_client import Wire

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SPECIAL = b"\0<eos>"
"""A token that is skipped in texts, though log-probabilities tell its name."""


class DecodeStream:
    """Text of tokens as it becomes complete."""

    def __init__(self, prompt: Sequence[bytes]) -> None:
        self._pieces = list(prompt)
        self._prefix, self._prefix_size = "", 0

    def step(self, piece: bytes) -> str:
        """New text after one token more."""
        if not self._prefix and self._pieces:
            before = decoded(self._pieces)
            if not before.endswith(REPLACEMENT):
                self._prefix, self._prefix_size = before, len(self._pieces)
        self._pieces.append(piece)
        text = decoded(self._pieces)
        if len(text.encode()) <= len(self._prefix.encode()) or text.endswith(REPLACEMENT):
            return ""
        if not text.startswith(self._prefix):
            # vLLM starts anew with this token alone
            self._pieces, self._prefix, self._prefix_size = [], "", 0
            return self.step(piece)
        new = text[len(self._prefix) :]
        kept = self._pieces[self._prefix_size :]
        self._prefix_size = len(kept)
        self._pieces, self._prefix = kept, decoded(kept)
        return new


def decoded(pieces: Sequence[bytes]) -> str:
    """As byte-level tokenizers do, special tokens skipped."""
    return b"".join([piece for piece in pieces if piece != SPECIAL]).decode(errors="replace")


class ScriptEngine(Wire):
    """Writes `script` after `prompt`, in events of random sizes; token ids index `pieces`."""

    def __init__(
        self, pieces: Sequence[bytes], prompt: list[int], script: list[int], seed: int
    ) -> None:
        self._pieces, self._prompt, self._script = pieces, prompt, script
        self._random = random.Random(seed)
        self._aborted = False

    @asynccontextmanager
    async def open(
        self, url: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        self._aborted = False
        yield 200, self._payloads(msgspec.json.decode(body))

    async def abort(self, url: str, name: str) -> None:
        self._aborted = True

    async def _payloads(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        prompt = self._prompt if isinstance(body["prompt"], str) else body["prompt"]
        assert prompt[: len(self._prompt)] == self._prompt
        written = prompt[len(self._prompt) :]
        assert written == self._script[: len(written)], "a token is lost or doubled"
        request = _Request(self._pieces, prompt, body)
        missing = self._script[len(written) :]
        at = 0
        while at < len(missing) and request.finish_reason is None:
            size = self._random.choice((1, 1, 2, 5))
            for token in missing[at : at + size]:
                request.write(token, ends=token == self._script[-1] and at + 1 >= len(missing))
                at += 1
                if request.finish_reason is not None:
                    break
            yield request.event(prompt)
            if self._aborted and request.finish_reason is None:
                request.finish_reason = "abort"
                yield request.event(prompt)
        assert request.finish_reason is not None, "the script is too short"


class _Request:
    """One request's detokenizer and what it has not told yet."""

    def __init__(self, pieces: Sequence[bytes], prompt: list[int], body: dict[str, Any]) -> None:
        self._pieces, self._body = pieces, body
        self._stream = DecodeStream([pieces[token] for token in prompt])
        stop = body.get("stop") or []
        self._stop = [stop] if isinstance(stop, str) else stop
        self._keep = bool(body.get("include_stop_str_in_output"))
        self._hold = max(map(len, self._stop)) - 1 if self._stop and not self._keep else 0
        self._tokens: list[int] = []
        self._text, self._told_text, self._told_tokens = "", 0, 0
        self._texts: list[str] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None

    def write(self, token: int, *, ends: bool) -> None:
        """One token; `ends`: nothing follows it."""
        self._texts.append(self._own_text(token))
        before = len(self._text)
        self._text += self._stream.step(self._pieces[token])
        self._tokens.append(token)
        if len(self._tokens) > (self._body.get("min_tokens") or 0):
            self._look_for_stop(len(self._text) - before)
        if self.finish_reason is None and len(self._tokens) == self._body["max_tokens"]:
            self.finish_reason = "length"

    def event(self, prompt: list[int]) -> bytes:
        """What is new."""
        hold = 0 if self.finish_reason is not None else self._hold
        end = max(len(self._text) - hold, self._told_text)
        tokens = self._tokens[self._told_tokens :]
        choice = {
            "index": 0,
            "text": self._text[self._told_text : end],
            "logprobs": self._logprobs(tokens),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "prompt_token_ids": None if self._told_tokens else prompt,
            "token_ids": tokens,
        }
        self._told_text, self._told_tokens = end, len(self._tokens)
        return msgspec.json.encode({"id": "x", "model": "tiny", "choices": [choice]})

    def _look_for_stop(self, new: int) -> None:
        best: tuple[int, int, str] | None = None
        for string in self._stop if new else ():
            place = self._text.find(string, max(len(self._text) + 1 - new - len(string), 0))
            if place >= 0 and (best is None or place + len(string) < best[0]):
                best = place + len(string), place, string
        if best is not None:
            end, place, self.stop_reason = best
            self.finish_reason, self._text = "stop", self._text[: end if self._keep else place]

    def _logprobs(self, tokens: list[int]) -> Any:
        if self._body.get("logprobs") is None:
            return None
        texts = self._texts[self._told_tokens :]
        if self._body.get("return_tokens_as_token_ids"):
            texts = [f"token_id:{token}" for token in tokens]
        values = [-float(token) for token in tokens]
        return {
            "text_offset": [0] * len(tokens),
            "token_logprobs": values,
            "tokens": texts,
            "top_logprobs": [{t: v} for t, v in zip(texts, values, strict=True)],
        }

    def _own_text(self, token: int) -> str:
        pieces = self._pieces
        if pieces[token] == SPECIAL:
            return SPECIAL[1:].decode()
        alone = decoded([pieces[token]])
        if not alone.endswith(REPLACEMENT):
            return alone
        before = [pieces[t] for t in self._tokens[-4:]]
        for size in range(1, len(before) + 1):
            context = before[-size:]
            full = decoded([*context, pieces[token]])
            if full.endswith(REPLACEMENT):
                continue
            clean = len(context)
            while clean and decoded([context[clean - 1]]).endswith(REPLACEMENT):
                clean -= 1
            head = decoded(context[:clean])
            if full.startswith(head):
                return full[len(head) :]
        return ""
