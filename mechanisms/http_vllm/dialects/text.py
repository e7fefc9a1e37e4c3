"""What is known of an answer's text: what has come, what its engine keeps back, what has none.

Tokens and text do not come in step.  An engine keeps back text that may become a stop string; the
first part of a character has no text until the last is there; a special token has none at all.
Log-probabilities tell the texts of the tokens, and with them what is kept back, if these texts are
laid along the text that has come:

- a part of a character is told as an empty text, and the token that completes it as the character;
- after a part that nothing completed, the text has a replacement character that no token tells,
  and perhaps more: what was written together with the part;
- a special token is told by its name, which the text does not hold.

What lies beyond is kept back, names that were found out left out.  It is believed only if no
character in it is surely broken, and if it has exactly as many characters as an engine keeps back:
where these are too many by one kind of token, that is a name as well.

(vLLM 0.32: `v1/engine/detokenizer.py`, `v1/engine/logprobs.py`.)
"""

import re
from collections.abc import Sequence
from typing import Any

from steersman.mechanisms.http_vllm.ask import Ask
from steersman.mechanisms.http_vllm.dialects import logprobs

LEVEL = "level"
"""Key of `Delta.rest`: after this delta, the text of all tokens is known.  Its value tells why."""
ABORTED = "aborted"
"""The engine gave all text that it had kept back, which may be that of tokens before."""
BRIDGED = "bridged"
"""It is a bridge's, and its text that of its token."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LIKE_A_NAME = re.compile(r"<\S+>|\[[A-Z_]+\]")
"""How special tokens are usually called."""


def stop_strings(sampling: dict[str, Any]) -> list[str]:
    """Those asked for."""
    stop = sampling.get("stop") or []
    return [stop] if isinstance(stop, str) else stop


def held_back(sampling: dict[str, Any]) -> int:
    """Characters that an engine keeps back until the end."""
    stop = stop_strings(sampling)
    if not stop or sampling.get("include_stop_str_in_output"):
        return 0
    return max(map(len, stop)) - 1


def text_of(ask: Ask) -> str:
    """All text that has come."""
    return "".join([delta.text for delta in ask.deltas])


def kept_back(ask: Ask, sampling: dict[str, Any]) -> str | None:
    """Text that the last engine kept back; None: it is not known."""
    hold, seam = held_back(sampling), ask.seam
    if not hold or not ask.deltas or LEVEL in ask.deltas[-1].rest:
        return ""
    if seam is not None and seam.tokens == len(ask.token_ids):
        return str(seam.kept_back)  # that engine told nothing
    texts: list[str] = []
    for delta in ask.deltas:
        own = logprobs.texts_of(delta.logprobs)
        if own is None and delta.token_ids:
            return None
        texts += own or ()
    known = text_of(ask)
    beyond = _beyond(texts, known)
    if beyond is None or not _is_whole(beyond):
        return None
    if len(known) > (0 if seam is None else len(seam.text)):
        return _of_length(hold, beyond)
    # All that this engine wrote may be kept back, so nothing tells a name from a text.
    lacked = "".join(beyond)
    names = sampling.get("skip_special_tokens") is not False and any(
        map(_LIKE_A_NAME.fullmatch, beyond)
    )
    return None if names or len(lacked) > hold or REPLACEMENT in lacked else lacked


def open_tokens(ask: Ask, sampling: dict[str, Any], known: str) -> int | None:
    """Tokens at the end that have no place in the `known` text of all; None: that is not known.

    They are a part of a character, or special.
    """
    count = 0
    for delta in reversed(ask.deltas):
        if not delta.token_ids:
            continue
        texts = logprobs.texts_of(delta.logprobs)
        if texts is None:
            own = delta.rest.get(LEVEL) == BRIDGED or not held_back(sampling)
            return count if len(delta.token_ids) == 1 and delta.text and own else None
        for text in reversed(texts):
            if text and known.endswith(text):
                return count
            count += 1
    return count


def _beyond(texts: Sequence[str], known: str) -> list[str] | None:
    """Texts of the tokens after the `known` text, the first one cut; None: they do not fit it."""
    at, names = 0, set[str]()
    for index, text in enumerate(texts):
        left = len(known) - at
        if left == 0 or (len(text) > left and text.startswith(known[at:])):
            beyond = [text[left:], *texts[index + 1 :]]
            return [own for own in beyond if own not in names]
        if known.startswith(text, at):
            at += len(text)
        elif (place := known.find(REPLACEMENT + text, at)) >= 0:
            at = place + len(REPLACEMENT + text)
        else:
            names.add(text)
    return [] if at == len(known) else None


def _is_whole(texts: Sequence[str]) -> bool:
    """Whether the text after parts of a character can be that character: its bytes suffice."""
    parts = 0
    for text in texts:
        if not text:
            parts += 1
        elif parts >= max(len(character.encode()) for character in text):
            return False
        else:
            parts = 0
    return True


def _of_length(length: int, texts: Sequence[str]) -> str | None:
    """These texts without names, `length` characters; None: it cannot be told which are names."""
    more = len("".join(texts)) - length
    names = {own for own in texts if own and len(own) * texts.count(own) == more}
    told = "".join([own for own in texts if own not in names])
    return told if len(told) == length and REPLACEMENT not in told else None
