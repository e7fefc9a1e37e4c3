"""A deterministic "language model" with a tokenizer: the next token is a hash of all before it.

So a continuation from prompt + partial tokens is the undisturbed one if and only if nothing was
lost, doubled or changed on the way.  Every 256 values of a byte are a token; some words of several
letters are; and some characters are written in two tokens, of which the first alone is no text yet
(and sometimes the second never comes).  Text is made from tokens as vLLM makes it
(`tokenizers.decoders.DecodeStream`): one token at a time, held back while it ends in half a
character, and with its stop strings held back.
"""

import re
import zlib
from array import array
from collections.abc import Sequence

EOS = 2
SPECIAL = 3
"""Tokens 0, 1 and 2 have no text."""
_WORDS = [" the", " of", " and", "ing", " to", " in", "er", "on", " a", " is", "ed", "\n\n", "St"]
_HALVES = [b"\xe2\x82", b"\xf0\x9f\x98"]
_BYTES = [
    b"", b"", b"", *(bytes([i]) for i in range(256)), *(w.encode() for w in _WORDS), *_HALVES,
]  # fmt: skip
VOCAB = len(_BYTES)
_OPEN = frozenset({SPECIAL + 0xC3, VOCAB - 2, VOCAB - 1})
"""What only makes a character with the token after it."""
_FREE = [
    *(SPECIAL + byte for byte in range(0x20, 0x7F)),
    *range(SPECIAL + 256, VOCAB - 2),
    *range(SPECIAL + 256, VOCAB - 2),
    *(sorted(_OPEN) * 4),
]
EOS_SHARE = 1 / 256
_BROKEN = 65536 // 16
"""Of 65,536 characters in two tokens, so many are broken off after the first."""
_ENCODER = re.compile(b"|".join([*(re.escape(w.encode()) for w in _WORDS), b"."]), re.DOTALL)
_ID_OF = {piece: token for token, piece in enumerate(_BYTES) if piece}


def _piece(token: int) -> bytes:
    """What lies beyond the vocabulary has no text."""
    return _BYTES[token] if token < VOCAB else b""


def encode(text: str) -> list[int]:
    """Token ids of a text."""
    return [_ID_OF[piece] for piece in _ENCODER.findall(text.encode())]


def decode(ids: Sequence[int]) -> str:
    """Text of token ids, halves of characters as U+FFFD."""
    return b"".join(_piece(token) for token in ids).decode(errors="replace")


def token_text(token: int) -> str:
    """Text of one token, as it stands in logprobs."""
    return decode([token])


def logprob(token: int, state: int) -> float:
    """Of a token after a context with hash `state`."""
    return -((state * 31 + token * 7) % 997) / 100 - 0.01


class Writer:
    """Writes the one continuation of a context."""

    def __init__(self, prompt: Sequence[int], eos_share: float = EOS_SHARE) -> None:
        self._state = zlib.crc32(array("I", prompt).tobytes())
        self._last = prompt[-1] if prompt else 0
        self._eos = int(eos_share * 65536)

    @property
    def state(self) -> int:
        """Hash of everything until now."""
        return self._state

    def next(self) -> int:
        """The next token."""
        mixed = (self._state * 0x9E3779B97F4A7C15) >> 20
        if self._last in _OPEN and mixed & 0xFFFF >= _BROKEN:
            token = SPECIAL + 0x80 + mixed % 64
        elif mixed & 0xFFFF < self._eos:
            token = EOS
        else:
            token = _FREE[(mixed >> 16) % len(_FREE)]
        self._state = zlib.crc32(token.to_bytes(4, "little"), self._state)
        self._last = token
        return token


def reference(
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    eos_share: float = EOS_SHARE,
) -> list[int]:
    """The undisturbed answer to a prompt, its stop token included."""
    writer, tokens = Writer(prompt_ids, eos_share), []
    while len(tokens) < max_tokens:
        tokens.append(writer.next())
        if tokens[-1] in stop_token_ids or (tokens[-1] == EOS and not ignore_eos):
            break
    return tokens


def text_of(ids: Sequence[int]) -> str:
    """The text of an answer: half a character at its end is never shown."""
    detokenizer = Detokenizer([], [], keep_stop=False)
    for token in ids:
        detokenizer.add(token)
    return detokenizer.text


class Detokenizer:
    """Text of an answer as it grows.

    After a prompt that ends in half a character the first piece begins with the whole prompt: so
    does vLLM 0.32 (`DecodeStream` finds no prefix to leave out).
    """

    def __init__(self, prompt: Sequence[int], stop: Sequence[str], keep_stop: bool) -> None:
        before = b"".join(map(_piece, prompt))
        half = before.decode(errors="replace").endswith("\ufffd")
        self._pending = before if half else b""
        self._stop, self._keep_stop = stop, keep_stop
        self._hold = 0 if keep_stop or not stop else max(map(len, stop)) - 1
        self.text = ""
        self._shown = 0

    def add(self, token: int) -> str | None:
        """One more token; the stop string that it completed, or None."""
        self._pending += _piece(token)
        piece = self._pending.decode(errors="replace")
        if not piece or piece.endswith("\ufffd"):
            return None
        self._pending = b""
        before = len(self.text)
        self.text += piece
        for stop in self._stop:
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                self.text = self.text[: at + len(stop) if self._keep_stop else at]
                return stop
        return None

    def shown(self, finished: bool) -> str:
        """What can be shown since the last call."""
        until = len(self.text) - (0 if finished else self._hold)
        start, self._shown = self._shown, max(self._shown, until)
        return self.text[start : self._shown]
