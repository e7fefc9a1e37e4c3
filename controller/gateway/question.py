"""One client request: its asks, whose it is, and where its answer stands."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from steersman.controller.gateway.identity import Told
from steersman.mechanisms.execution import Execution
from steersman.mechanisms.http_vllm.ask import Abilities, Answer, Ask, Delta


class Form(Protocol):
    """How requests of one path are read, and how they are answered.  Stateless."""

    prefix: str
    """Of the ids in its answers."""

    def asks(
        self, body: dict[str, Any], raw: bytes, headers: Mapping[str, str], abilities: Abilities
    ) -> tuple[list[Ask], list[int]]:
        """One ask per sample, and the number of each one's prompt; or one ask without a dialect,
        where the request must be sent on as it is."""

    def whole(self, question: "Question") -> bytes:
        """The JSON answer, once all asks have ended."""

    def chunk(self, question: "Question", index: int, delta: Delta, first: bool) -> list[bytes]:
        """Events for what ask `index` has written; `first`: its first."""

    def closing(self, question: "Question") -> list[bytes]:
        """Events at the end of a stream."""


@dataclass(eq=False, slots=True)
class Question:
    """A client request that is being answered."""

    form: Form | None
    """None: a path that is only passed on."""
    request_id: str
    """The answer's id, without the form's prefix."""
    path: str
    body: Any
    asks: list[Ask]
    group_of: list[int]
    """Number of each ask's prompt."""
    prompts: list[str]
    """Name of each prompt."""
    streamed: bool
    created_unix_s: int
    told: Told
    number: int = -1
    """Given by the desk."""
    info: dict[str, Any] | None = None
    """For the answer's `steersman` block; None: it has none."""
    executions: list[Execution] = field(default_factory=list)
    failure: Answer | None = None
    """What the client gets instead of an answer."""
    on_news: "Callable[[], None] | None" = None
    """Called whenever there is something to send, or it has finished; to be set by `when_told`."""
    written: deque[tuple[int, Delta]] = field(default_factory=deque)
    """Deltas that a streaming client was not sent yet, with the number of their asks."""
    passed: deque[bytes] = field(default_factory=deque)
    """The same for bytes that are passed on as they are."""
    unfinished: int = 0
    """Asks that have not ended."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    on_finished: "Callable[[Question], None] | None" = None
    """Called once it has finished; to be set by `when_finished`."""
    abandoned: bool = False
    notes: Any = None
    """Of its form: how far its stream is."""

    @property
    def n(self) -> int:
        """Samples per prompt."""
        return len(self.asks) // max(len(self.prompts), 1)

    @property
    def public_id(self) -> str:
        """The id that its client sees."""
        return f"{self.form.prefix if self.form else ''}{self.request_id}"

    def when_finished(self, callback: "Callable[[Question], None]") -> None:
        """Call `callback` once, when all that was written is here (now, if it is)."""
        if self.finished.is_set():
            callback(self)
        else:
            self.on_finished = callback

    def when_told(self, callback: "Callable[[], None]") -> None:
        """Call `callback` whenever there is something to send, or it has finished (now, if so)."""
        self.on_news = callback
        if self.written or self.passed or self.finished.is_set():
            callback()

    def tell(self) -> None:
        """There are news."""
        if self.on_news is not None:
            self.on_news()

    def listen(self) -> None:
        """Gather what is written, for a client that streams."""
        for index, ask in enumerate(self.asks):
            ask.on_delta = lambda delta, index=index: self._wrote(index, delta)
            ask.on_event = self._passed

    def release(self) -> None:
        """Let go of what was written, which nobody wants; before its end, only stop telling."""
        self.on_news = None
        for ask in self.asks:
            ask.on_delta = ask.on_event = None
        if not self.finished.is_set():
            return
        self.body = None
        for ask in self.asks:
            ask.deltas, ask.token_ids, ask.prompt_token_ids = [], [], None
            ask.body = ask.answer = None

    def _wrote(self, index: int, delta: Delta) -> None:
        self.written.append((index, delta))
        self.tell()

    def _passed(self, data: bytes) -> None:
        self.passed.append(data)
        self.tell()
