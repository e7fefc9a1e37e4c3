"""Where one engine's text ends and another's begins.

Tokens go on exactly anywhere.  Text does not, for three reasons:

- An engine keeps back text that may become a stop string.  If it dies with some, its tokens are
  known and their text is not.  An abort by id brings all.  Where that is no way, or a client sees
  the text as it comes, log-probabilities are asked for: they tell the texts of the tokens
  (`dialects.text`).  An ask whose text cannot be known begins again (`resumable`); if its client
  has seen some of it, that is an error.
- A stop string may lie across the seam, where the next engine does not see its beginning.
- The last tokens may be a part of a character.  vLLM's detokenizer is primed with the prompt; if
  that ends in the middle of a character, its first text holds *all* of the prompt and then the
  completed character, or what was written instead, and it looks for stop strings in all of that.

So a seam is `clean` if the text so far is known to end with a whole character.  With stop strings,
it must not end with the beginning of one either.  Elsewhere the next requests are *bridges* of one
token each: without stop strings, which are looked for here, and with log-probabilities, which tell
the token's own text and so whether it continues a character.  Once the seam is good, another
request goes on as usual.  Where no stop string and no text of a token is asked for, and enough
text is there to be recognized in a longer one, a bridge is needed only if the first token turns out
to have no text.

A greedy ask whose log-probabilities tell the tokens' texts, or that has no text yet, goes back to
the beginning of the character instead: the same tokens come again, and the texts of all their
alternatives are right.

One thing is left: the first text of a sampled answer to a prompt of token ids, if its client was
shown tokens without any text, the cut fell there, and the first token held a character and the
beginning of the next.  Then that first character is lost.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from steersman.mechanisms.http_vllm.ask import TELLING, Abilities, Ask, Delta
from steersman.mechanisms.http_vllm.dialects import logprobs
from steersman.mechanisms.http_vllm.dialects.text import (
    BRIDGED,
    LEVEL,
    REPLACEMENT,
    held_back,
    kept_back,
    open_tokens,
    stop_strings,
    text_of,
)

AHEAD = "ahead"
"""Key of `Delta.rest`: it has text that an engine would still keep back."""
DROPPED = "dropped"
"""Key of `Delta.rest`: characters at the end of the text that turn out not to belong to it."""
LONGEST_TOKEN = 128
"""Characters; a first text beyond it is not one token's."""
MAX_REPEATED = 8
"""Tokens; a character has at most four bytes, and some models write broken ones."""


@dataclass(slots=True)
class Seam:
    """How an attempt carries on; `Ask.seam`."""

    text: str
    """All text before it."""
    kept_back: str
    """The end of it, which was told by log-probabilities only; it comes with the first tokens."""
    tokens: int
    """Written before it."""
    clean: bool
    bridge: bool
    repeated: int = 0
    """Tokens before it that come again."""
    opened: bool = False
    """Some text has come."""
    left: int = 0
    """Tokens that are missing after it."""
    start: int = field(init=False)
    """Tokens of the answer that are in the attempt's prompt."""

    def __post_init__(self) -> None:
        self.start = self.tokens - self.repeated


def resumable(ask: Ask, sampling: dict[str, Any]) -> bool:
    """Whether the text of all tokens is known, and how to carry it on."""
    lacked = kept_back(ask, sampling)
    if lacked is None:
        return False
    text = text_of(ask)
    if ask.shown or open_tokens(ask, sampling, text + lacked) == 0:
        return True
    text = text.strip()
    return bool(text) and (len(text) >= TELLING or not _shows_ids(ask, sampling))


def seam_of(ask: Ask, sampling: dict[str, Any]) -> Seam:
    """How to carry on from what is written."""
    lacked, stop = kept_back(ask, sampling) or "", stop_strings(sampling)
    text = text_of(ask) + lacked
    without = open_tokens(ask, sampling, text)
    repeated = 0
    if sampling.get("temperature") == 0:
        repeated = (without if text else len(ask.token_ids)) or 0
        repeated = repeated if repeated <= MAX_REPEATED else 0
    clean = without == 0 or repeated > 0
    if clean:
        bridge = not is_safe(text, stop)
    else:
        bridge = ask.cut or bool(stop or without) or len(text.strip()) < TELLING
    ask.cut = False
    return Seam(text, lacked, len(ask.token_ids), clean, bridge, repeated)


def bridging(ask: Ask, rest: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The sampling `rest` of what is missing, made that of a bridge where `ask.seam` is one."""
    seam: Seam = ask.seam
    seam.left = rest["max_tokens"] - seam.repeated
    if not seam.bridge:
        return rest
    bridge = rest | {"max_tokens": seam.repeated + 1, "stop": []}
    if rest.get("min_tokens"):
        bridge["min_tokens"] = min(rest["min_tokens"], seam.repeated + 1)
    return bridge


def wants_texts(ask: Ask, sampling: dict[str, Any], abilities: Abilities) -> bool:
    """Whether log-probabilities must tell the tokens' texts, though nobody asked for them."""
    if _shows_ids(ask, sampling):
        return False
    if ask.seam is not None and ask.seam.bridge:
        return True
    return held_back(sampling) > 0 and (ask.streamed or not abilities.abort_path)


def is_safe(text: str, stop: list[str]) -> bool:
    """Whether no stop string can have begun in `text`."""
    return not any(
        text.endswith(string[:length]) for string in stop for length in range(1, len(string))
    )


def joined(ask: Ask, delta: Delta, sampling: dict[str, Any]) -> Delta | None:
    """An event of an attempt that carries on, as if there were no seam; None: it told nothing new.

    Sets `ask.cut` where another request shall go on.
    """
    seam: Seam | None = ask.seam
    if seam is None:
        return delta
    if seam.repeated:
        delta = _without_repeated(seam, delta)
    elif not (seam.clean or seam.opened):
        delta = _without_prompt(ask, seam, delta)
    if seam.bridge:
        delta = _bridged(ask, seam, delta, sampling)
    elif not (seam.clean or seam.opened) and delta.finish_reason is None:
        ask.cut = True  # the first token has no text: it may be a part of a character
    if not (delta.token_ids or delta.text or delta.finish_reason):
        return None
    if seam.kept_back:
        rest = {**delta.rest, AHEAD: True}
        delta, seam.kept_back = replace(delta, text=seam.kept_back + delta.text, rest=rest), ""
    return delta


def _without_repeated(seam: Seam, delta: Delta) -> Delta:
    dropped = min(seam.repeated, len(delta.token_ids))
    seam.repeated -= dropped
    return replace(
        delta,
        token_ids=delta.token_ids[dropped:],
        logprobs=logprobs.without_first(delta.logprobs, dropped),
    )


def _without_prompt(ask: Ask, seam: Seam, delta: Delta) -> Delta:
    """Takes the prompt and the text so far out of a first text, if they are in it.

    The text of the token itself tells that, where it is known: it is all of a first text after
    whole characters, but for a space that some tokenizers write before a word.
    """
    text = delta.text
    if not text:
        return delta
    seam.opened = True
    texts = logprobs.texts_of(delta.logprobs)
    own = texts[0] if texts is not None and len(texts) == 1 else None
    if own and not own.startswith(REPLACEMENT) and text.lstrip() == own.lstrip():
        return delta
    single = len(delta.token_ids) == 1
    if own is None and not _is_of_all(text, seam.text, ask.body.get("prompt"), single=single):
        return delta
    new = text[_end_of_known(text, seam, ask.body.get("prompt"), own, single=single) :]
    completed = new.rpartition(REPLACEMENT)[2]  # a token's own text begins after broken characters
    told = logprobs.with_first_text(delta.logprobs, completed) if single else delta.logprobs
    return replace(delta, text=new, logprobs=told)


def _is_of_all(text: str, before: str, prompt: Any, *, single: bool) -> bool:
    """Whether a text whose tokens' own texts are not known is that of everything."""
    if isinstance(prompt, str) and text.startswith(prompt + before):
        return True
    if single and len(text) > LONGEST_TOKEN:
        return True
    return len(before.strip()) >= TELLING and before in text


def _end_of_known(text: str, seam: Seam, prompt: Any, own: str | None, *, single: bool) -> int:
    """Where the new text begins in a text of everything: there is some."""
    before = seam.text
    if isinstance(prompt, str) and text.startswith(prompt + before):
        return min(len(prompt) + len(before), len(text) - 1)
    most = len(text) - max(len(own or ""), 1)
    if not before:
        head = text[:most]
        broken = len(head) - len(head.rstrip(REPLACEMENT))
        return most - min(broken, seam.tokens)  # all that was written is broken characters
    # a single token adds little after the last place; several may repeat the text so far
    place = text.rfind(before, 0, most) if single else text.find(before)
    return most if place < 0 else place + len(before)


def _bridged(ask: Ask, seam: Seam, delta: Delta, sampling: dict[str, Any]) -> Delta:
    """Looks for stop strings after a bridge's token, and goes on."""
    known = len(seam.text)
    seam.text += delta.text
    written = len(ask.token_ids) + len(delta.token_ids)
    finish_reason, stop_reason = delta.finish_reason, delta.stop_reason
    rest, found = {**delta.rest, LEVEL: BRIDGED}, None
    if written > (sampling.get("min_tokens") or 0):
        found = _stop_in(seam.text, known, stop_strings(sampling))
    if found is not None:
        finish_reason, (stop_reason, end) = "stop", found
        if not sampling.get("include_stop_str_in_output"):
            end -= len(stop_reason)
        rest[DROPPED] = len(seam.text) - end
    elif finish_reason == "length" and seam.left > written - seam.tokens:
        ask.cut, finish_reason = True, None
    return replace(delta, finish_reason=finish_reason, stop_reason=stop_reason, rest=rest)


def _shows_ids(ask: Ask, sampling: dict[str, Any]) -> bool:
    """Whether alternatives are told by their ids, which no request tells together with texts."""
    top = sampling.get("top_logprobs") or sampling.get("logprobs") or 0
    return bool(ask.body.get("return_tokens_as_token_ids")) and top is not True and top > 0


def _stop_in(text: str, known: int, stop: list[str]) -> tuple[str, int] | None:
    """The stop string that ends first after `known` characters, and its end."""
    found: tuple[str, int] | None = None
    for string in stop:
        place = text.find(string, max(known - len(string) + 1, 0))
        if place >= 0 and (found is None or place + len(string) < found[1]):
            found = string, place + len(string)
    return found
