"""What one trajectory asks of an engine in its client's own words, and what has come back so far.

An `Ask` is a client's request cut down to one prompt and one sample.  It goes with the trajectory
from engine to engine (it is the `Payload` of its attempts) and gathers `Delta`s: whoever answers
the client puts them together, and whoever carries on elsewhere sends their tokens along.  A dialect
knows one API: how to ask, how to carry on, and how to read what an engine sends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

TELLING = 16
"""Characters of text by which it is recognized within a longer one.  Fewer are a handful of tokens,
sooner written anew than told apart."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an engine was found to offer."""

    generate: bool = False
    """`/inference/v1/generate`: tokens in, tokens out."""
    token_ids: bool = True
    """It tells the token ids of what it writes (`return_token_ids`)."""
    reasoning_parser: bool = False
    """It splits chat answers into reasoning and content: only it can put them together."""
    abort_path: str = ""
    """Where running requests can be aborted by id, with their partial tokens; empty: only by
    closing their connection."""
    developer: bool = False
    """The trainer's routes (pause, weights) are there."""
    model: str = ""
    """Name of its base model, the first of `/v1/models`; empty: unknown."""
    max_model_len: int = 0
    """Most tokens of prompt and output, from `/v1/models`; 0: unknown."""
    steady_usage: bool = False
    """Its usage has details with every answer or with none, so one answer shows which."""
    tells_usage: bool = True
    """Its usage may tell more than the counts, which are known here: then it is waited for."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of an attempt, as one event of an engine's stream brought it."""

    token_ids: list[int]
    text: str = ""
    logprobs: Any = None
    """Of these tokens, in the form of the ask's own dialect."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_version: int | None = None
    rest: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the choice, as they came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine said as a whole: an error, or the answer to a request sent on as it is."""

    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One request to one engine."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    abort_id: str = ""
    """Name of the request inside the engine, for `Abilities.abort_path`; empty: it has none."""


class Dialect(Protocol):
    """One API of an engine.  Stateless."""

    def ask(self, ask: "Ask", attempt_id: str, abilities: Abilities) -> Upstream:
        """The request for everything."""

    def resume(self, ask: "Ask", attempt_id: str, abilities: Abilities) -> Upstream:
        """The request for what is missing, where `ask.deltas` are written."""

    def read(self, ask: "Ask", event: dict[str, Any]) -> Delta | None:
        """One event of the stream that answers; None: nothing was written.  May note in `ask` what
        is told only once (`prompt_token_ids`, `frame`).

        To be called until the stream's `[DONE]`, or the last token where no usage was asked for.
        Where it sets `ask.cut`, the stream is left once the delta was taken.
        """

    def resumable(self, ask: "Ask") -> bool:
        """Whether another engine can go on from exactly what is written in `ask`; to be asked once
        an attempt has ended.  Text may lag behind tokens where an engine died."""


@dataclass(eq=False, slots=True)
class Ask:
    """Implements `Payload`."""

    dialect: Dialect | None
    """None: sent on as it is, answered as it is."""
    path: str
    """With its query, where there is no dialect."""
    body: Any
    """The client's request with one prompt and n = 1, as JSON values; its raw bytes where there is
    no dialect."""
    headers: Mapping[str, str]
    """To be sent along."""
    max_tokens: int
    """Most that it may write."""
    method: str = "POST"
    streamed: bool = False
    """The client wants what is written as it is written."""
    textless: bool = False
    """The client wants token ids only."""
    continuable: bool = True
    """Another engine can go on from its tokens; False: grammar, penalties and the like would start
    again."""
    estimated_prompt_tokens: int = 1
    """Until an engine says how many they are."""
    prompt_token_ids: list[int] | None = None
    deltas: list[Delta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """All tokens of `deltas`."""
    frame: dict[str, Any] = field(default_factory=dict)
    """Fields of the engine's first event beside its choices: created, model ..."""
    answer: Answer | None = None
    """Its refusal; or the whole answer, where there is no dialect."""
    on_delta: Callable[[Delta], None] | None = None
    """Told of each delta as it comes."""
    on_event: Callable[[bytes], None] | None = None
    """The same for what is sent on as it is and streamed: raw bytes."""
    shown: bool = False
    """Its client has seen some of it."""
    characters: int = 0
    """Of the text so far."""
    restarts: int = 0
    """Times it began again because it could not be carried on."""
    cut: bool = False
    """Set by a dialect: end this request here, and go on with `resume` in another one of the same
    attempt; `resume` takes it back."""
    seam: Any = None
    """Note of its dialect: how the present attempt carries on."""

    @property
    def prompt_tokens(self) -> int:
        """Known, or estimated."""
        known = self.prompt_token_ids
        return self.estimated_prompt_tokens if known is None else len(known)

    @property
    def awaits_usage(self) -> bool:
        """What comes after the last token was asked for."""
        options = self.body.get("stream_options")
        return bool(options and options.get("include_usage"))

    @property
    def bound(self) -> bool:
        """Nobody else can go on from its tokens."""
        return not self.continuable or self.dialect is None

    @property
    def movable(self) -> bool:
        """Also before its prompt's tokens are known: then it is asked anew.

        Not before its client, if it streams, has seen some characters: if the next one is half
        written, an engine that goes on tells it together with all before it, and a few do not tell
        where it begins.
        """
        telling = not self.streamed or self.textless or self.characters >= TELLING
        return telling and not self.bound

    @property
    def resumable(self) -> bool:
        """Whether another engine can go on from what is written; if not, it begins again."""
        if not self.deltas:
            return True
        return self.dialect is not None and self.continuable and self.dialect.resumable(self)

    @property
    def restartable(self) -> bool:
        """Whether it can begin again without its client noticing."""
        return not self.shown

    def take(self, delta: Delta) -> None:
        """Something was written."""
        self.deltas.append(delta)
        self.token_ids += delta.token_ids
        self.characters += len(delta.text)
        if self.streamed:
            self.shown = True
        if self.on_delta is not None:
            self.on_delta(delta)

    def renew(self) -> None:
        """Forget what was written."""
        assert self.restartable
        self.restarts += bool(self.deltas)
        self.deltas.clear()
        self.token_ids.clear()
        self.characters = 0
        self.answer = self.seam = None
        self.cut = False
