"""The engine inside the fake server: sequences that grow by the clock, a queue, a pause.

A sequence has written as many tokens as its time allows; it wakes once per piece that is shown, not
per token.  The clock stands still while the engine is paused or stalled.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.fake_model import EOS, Detokenizer, Writer, logprob


@dataclass(slots=True)
class Piece:
    """What a sequence shows at once."""

    token_ids: list[int]
    text: str
    logprobs: list[float]
    finish_reason: str | None
    stop_reason: int | str | None
    spans: list[dict[str, Any]] | None = None
    """Weight versions of the whole output, at its end."""


@dataclass(eq=False, slots=True)
class Stream:
    """One prompt being continued."""

    prompt: list[int]
    max_tokens: int
    abort_id: str
    index: int = 0
    interval: int = 1
    stop: Sequence[str] = ()
    keep_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    wants_logprobs: bool = False
    whole: bool = False
    """Shown only when it ends."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    sent: int = 0
    counted: int = 0
    """Tokens that the engine's counters know of."""
    wake: "asyncio.Future[None] | None" = None
    _writer: Writer | None = None
    _detokenizer: Detokenizer | None = None

    def begin(self, eos_share: float) -> None:
        """Before the first token."""
        self._writer = Writer(self.prompt, eos_share)
        self._detokenizer = Detokenizer(self.prompt, self.stop, self.keep_stop)

    def grow(self, until: int, version: str) -> None:
        """Write on, up to `until` tokens in all."""
        writer, detokenizer = self._writer, self._detokenizer
        assert writer is not None
        assert detokenizer is not None
        start = len(self.tokens)
        while self.finish_reason is None and len(self.tokens) < until:
            state = writer.state
            token = writer.next()
            self.tokens.append(token)
            if self.wants_logprobs:
                self.logprobs.append(logprob(token, state))
            if token in self.stop_token_ids or (token == EOS and not self.ignore_eos):
                self.finish_reason = "stop"
                self.stop_reason = None if token == EOS else token
                if self.keep_stop:
                    detokenizer.add(token)
            elif (found := detokenizer.add(token)) is not None:
                self.finish_reason, self.stop_reason = "stop", found
            elif len(self.tokens) == self.max_tokens:
                self.finish_reason = "length"
        if len(self.tokens) > start:
            if self.spans and self.spans[-1]["version"] == version:
                self.spans[-1]["end"] = len(self.tokens)
            else:
                self.spans.append({"version": version, "start": start, "end": len(self.tokens)})

    def piece(self) -> Piece:
        """Everything not shown yet."""
        assert self._detokenizer is not None
        ended = self.finish_reason is not None
        start, self.sent = self.sent, len(self.tokens)
        return Piece(
            self.tokens[start:],
            self._detokenizer.shown(ended),
            self.logprobs[start:],
            self.finish_reason,
            self.stop_reason,
            self.spans if ended else None,
        )

    @property
    def ends_by_length(self) -> bool:
        """Nothing that it writes can end it."""
        return self.ignore_eos and not self.stop and not self.stop_token_ids

    @property
    def boundary(self) -> int:
        """Tokens at which the next piece is shown."""
        if self.whole:
            return self.max_tokens
        return min(self.max_tokens, self.sent + self.interval if self.sent else 1)

    def poke(self) -> None:
        """Something happened to it: look now."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


@dataclass(eq=False)
class Engine:
    """Runs up to `max_num_seqs` sequences; the others wait in line."""

    token_s: float = 0.0
    """Per token of each sequence; 0: everything is there at once."""
    prefill_s: float = 0.0
    """Before the first token."""
    max_num_seqs: int = 256
    eos_share: float = 1 / 256
    weight_version: str = "0"
    running: list[Stream] = field(default_factory=list)
    line: "deque[asyncio.Future[None]]" = field(default_factory=deque)
    counters: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("generation_tokens", "prompt_tokens", "preemptions", "iterations", "busy_s"), 0.0
        )
    )
    paused: bool = False
    stalled: bool = False
    _frozen_s: float = 0.0
    _frozen_at: float | None = None
    _busy_since: float = 0.0
    _started: dict[Stream, float] = field(default_factory=dict)

    def clock(self) -> float:
        """Seconds in which the engine could work."""
        now = time.monotonic() if self._frozen_at is None else self._frozen_at
        return now - self._frozen_s

    def freeze(self, *, paused: bool | None = None, stalled: bool | None = None) -> None:
        """Pause or go on; `stalled` does the same and tells nobody."""
        self.paused = self.paused if paused is None else paused
        self.stalled = self.stalled if stalled is None else stalled
        frozen, now = self.paused or self.stalled, time.monotonic()
        if frozen and self._frozen_at is None:
            self._frozen_at = now
        elif not frozen and self._frozen_at is not None:
            self._frozen_s += now - self._frozen_at
            self._frozen_at = None
        for sequence in self.running:
            sequence.poke()

    def abort(self, ids: Sequence[str] | None) -> int:
        """End these (None: all) with what they have written."""
        chosen = [s for s in self.running if ids is None or s.abort_id in ids]
        for sequence in chosen:
            self._catch_up(sequence)
            sequence.finish_reason = sequence.finish_reason or "abort"
            sequence.poke()
        return len(chosen) if ids is None else len(ids)

    async def run(self, sequence: Stream) -> AsyncIterator[list[Piece]]:
        """Pieces as they come due."""
        await self._enter(sequence)
        try:
            sequence.begin(self.eos_share)
            start_s = self.clock() + self.prefill_s
            self.begun(sequence, start_s)
            while True:
                boundary = sequence.boundary
                await self._until(sequence, start_s + boundary * self.token_s)
                pieces = []
                due = self._due(sequence)
                while sequence.finish_reason is None and boundary <= due:
                    self._grow(sequence, boundary)
                    if not sequence.whole or sequence.finish_reason is not None:
                        pieces.append(sequence.piece())
                    boundary = sequence.boundary
                if sequence.finish_reason is not None:
                    if not pieces or pieces[-1].finish_reason is None:
                        pieces.append(sequence.piece())
                    yield pieces
                    return
                if pieces:
                    yield pieces
        finally:
            self.leave(sequence)

    def catch_up(self) -> None:
        """Count what has been written by now.

        Not by writing it, where that can be told without: a hundred sequences take 8 ms, in which a
        page of metrics would hold up all others.
        """
        for sequence in self.running:
            if not sequence.ends_by_length:
                self._catch_up(sequence)
            else:
                self.count_due(sequence, sequence.boundary - 1)

    def count_due(self, sequence: Stream, most: int) -> None:
        """What its time allows by now, `most` tokens at most."""
        if sequence in self._started:
            self._count(sequence, min(self._due(sequence), most))

    def _due(self, sequence: Stream) -> int:
        if self.token_s <= 0:
            frozen = self._frozen_at is not None
            return len(sequence.tokens) if frozen else sequence.max_tokens
        elapsed_s = self.clock() - self._started[sequence]
        return max(0, int(elapsed_s / self.token_s + 1e-6))

    def _catch_up(self, sequence: Stream) -> None:
        if sequence in self._started:
            self._grow(sequence, min(self._due(sequence), sequence.boundary - 1))

    def _grow(self, sequence: Stream, until: int) -> None:
        sequence.grow(until, self.weight_version)
        self._count(sequence, len(sequence.tokens))

    def _count(self, sequence: Stream, tokens: int) -> None:
        wrote = max(tokens - sequence.counted, 0)
        sequence.counted += wrote
        self.counters["generation_tokens"] += wrote
        self.counters["iterations"] += wrote / max(1, len(self.running))

    async def _until(self, sequence: Stream, due_s: float) -> None:
        """Wait for the clock, or for a poke that changes something."""
        while sequence.finish_reason is None:
            wait_s = due_s - self.clock()
            if self._frozen_at is None and wait_s <= 0:
                return
            loop = asyncio.get_running_loop()
            sequence.wake = loop.create_future()
            timer = None
            if self._frozen_at is None:
                timer = loop.call_later(wait_s, sequence.poke)
            try:
                await sequence.wake
            finally:
                if timer is not None:
                    timer.cancel()

    async def _enter(self, sequence: Stream) -> None:
        if len(self.running) >= self.max_num_seqs:
            turn = asyncio.get_running_loop().create_future()
            self.line.append(turn)
            try:
                await turn
            finally:
                if turn in self.line:
                    self.line.remove(turn)
        if not self.running:
            self._busy_since = time.monotonic()
        self.running.append(sequence)

    def begun(self, sequence: Stream, start_s: float) -> None:
        """It is written from then on."""
        self._started[sequence] = start_s
        self.counters["prompt_tokens"] += len(sequence.prompt)

    def leave(self, sequence: Stream) -> None:
        """It has ended, or nobody wants it any more."""
        self.running.remove(sequence)
        self._started.pop(sequence, None)
        if not self.running:
            self.counters["busy_s"] += time.monotonic() - self._busy_since
        while self.line and len(self.running) < self.max_num_seqs:
            turn = self.line.popleft()
            if not turn.done():
                turn.set_result(None)
                break
