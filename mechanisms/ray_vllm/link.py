"""One replica as the driver sees it: what was asked of it, what it wrote, whether it lives.

Requests of one turn of the event loop go out as one command.  A watcher task polls; it is the only
one that applies news, so each token is counted once and each attempt ends once.  The log of every
running attempt is kept here: when the replica dies, its attempts end as lost with all that is
known of them.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import ray

from steersman.estimators.errors import FleetError
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    EndReason,
    ReplicaInfo,
    ReplicaStats,
)
from steersman.mechanisms.ray_vllm.wire import Command, End, Reply, to_spans

log = logging.getLogger(__name__)

POLL_S = 0.05
"""Longest time between two reports of progress; each poll costs both sides about 1 ms."""


LEAVE_S = 5.0
"""For a replica that stays to hear that we go."""


class ReplicaLostError(FleetError):
    """The replica died while it was asked for something."""


@dataclass(eq=False, slots=True)
class _Log:
    """What a running attempt wrote."""

    attempt: Attempt
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Link:
    """The driver's end of one replica."""

    def __init__(
        self,
        info: ReplicaInfo,
        actor: Any,
        client: str,
        *,
        owned: bool,
        stall_timeout_s: float,
        changed: Callable[[], None],
        weight_version: int = 0,
    ) -> None:
        self.info = info
        self.owned = owned
        # It has just answered, and nothing runs on it for us yet: that is a report.
        self.stats = ReplicaStats(weight_version=weight_version, reported_s=time.monotonic())
        self._actor = actor
        self._client = client
        self._stall_timeout_s = stall_timeout_s
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self._logs: dict[int, _Log] = {}
        self._handle_of: dict[Attempt, int] = {}
        self._handles = itertools.count(1)
        self._commands = itertools.count(1)
        self._starts: list[int] = []
        self._aborts: list[int] = []
        self._speculate: dict[int, int] = {}
        self._draft: int | None = None
        self._flushing = False
        self._confirmed: int | None = None
        """Weight version that the replica has taken on since the poll under way was sent."""
        self._watcher = asyncio.create_task(self._watch(), name=f"steersman-watch-{info.name}")

    @property
    def alive(self) -> bool:
        """Whether attempts may be started."""
        return not self._lost.done()

    def start(self, attempt: Attempt) -> None:
        """Send the attempt's request, together with others of this turn."""
        if self._lost.done():
            attempt.finish(AttemptEnd(EndReason.LOST, [], [], [], self._lost.result()))
            return
        handle = next(self._handles)
        self._logs[handle] = _Log(attempt)
        self._handle_of[attempt] = handle
        self._starts.append(handle)
        self._flush_soon()

    def abort(self, attempt: Attempt) -> None:
        """Ask for the attempt's end."""
        if (handle := self._handle_of.get(attempt)) is not None:
            self._aborts.append(handle)
            self._flush_soon()

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        """Draft so many tokens for the attempt alone."""
        if (handle := self._handle_of.get(attempt)) is not None:
            self._speculate[handle] = draft_tokens
            self._flush_soon()

    def draft(self, draft_tokens: int) -> None:
        """Draft so many tokens for attempts without a number of their own."""
        self._draft = draft_tokens
        self._flush_soon()

    async def call(self, method: str, *arguments: Any) -> Any:
        """A call's answer; raises `ReplicaLostError` if the replica dies before it comes."""
        if self.alive:
            future = _future(getattr(self._actor, method).remote(*arguments))
            await asyncio.wait((future, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                try:
                    return future.result()
                except ray.exceptions.RayActorError as error:
                    self.lose(_reason(error))
                except ray.exceptions.RayTaskError as error:
                    raise FleetError(f"replica {self.info.name!r}: {_reason(error)}") from error
        raise ReplicaLostError(f"replica {self.info.name!r} is lost: {self._lost.result()}")

    async def update_weights(self, packed: Any, weight_version: int) -> None:
        """Have the replica load weights; what is started from then on is known to run on them.

        An idle replica's next report may be a second away, and the one under way may have been
        written before the weights came, so its version does not count.
        """
        await self.call("update_weights", packed, weight_version)
        self._confirmed = weight_version
        self.stats = msgspec.structs.replace(self.stats, weight_version=weight_version)

    def lose(self, why: str) -> None:
        """The replica is dead to us: end its attempts as lost."""
        if self._lost.done():
            return
        self._lost.set_result(why)
        if self.owned:
            ray.kill(self._actor, no_restart=True)
        logs, self._logs = self._logs, {}
        self._handle_of.clear()
        for running in logs.values():
            running.attempt.finish(_end(running, EndReason.LOST, why))
        self._changed()

    async def close(self, why: str = "the fleet was closed") -> None:
        """Kill an owned replica, leave another one; attempts still running end as lost.

        Killing is enough: the engine's process dies with its actor (within 25 ms measured).
        """
        if self.alive and not self.owned:
            leaving = _future(self._actor.leave.remote(self._client))
            await asyncio.wait(
                (leaving, self._lost), timeout=LEAVE_S, return_when=asyncio.FIRST_COMPLETED
            )
        self.lose(why)
        await asyncio.wait((self._watcher,), timeout=2.0)
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what this turn of the loop asked for."""
        self._flushing = False
        starts = [(h, self._logs[h].attempt.request) for h in self._starts if h in self._logs]
        command = Command(next(self._commands), starts, self._aborts, self._speculate, self._draft)
        self._starts, self._aborts, self._speculate, self._draft = [], [], {}, None
        if not self.alive:
            return
        try:
            future = _future(self._actor.command.remote(self._client, command))
        except Exception as error:  # whatever Ray refuses here, it will not carry our attempts
            self.lose(_reason(error))
        else:
            future.add_done_callback(self._check_command)

    def _check_command(self, future: "asyncio.Future[Any]") -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self.lose(_reason(error))

    async def _watch(self) -> None:
        """Supervise the replica: apply its news until it is lost, whatever the reason."""
        acknowledged = 0
        try:
            while self.alive:
                self._confirmed = None
                future = _future(self._actor.poll.remote(self._client, acknowledged, POLL_S))
                await asyncio.wait(
                    (future, self._lost),
                    timeout=self._stall_timeout_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not self.alive:
                    return
                if not future.done():
                    self.lose(f"it has not answered for {self._stall_timeout_s:g} s")
                    return
                reply: Reply = future.result()
                if reply.number > acknowledged:
                    acknowledged = reply.number
                    self._apply(reply)
        except Exception as error:
            if not isinstance(error, ray.exceptions.RayActorError):
                log.exception("watching replica %r failed", self.info.name)
            self.lose(_reason(error))

    def _apply(self, reply: Reply) -> None:
        stats, confirmed = reply.stats, self._confirmed
        self.stats = msgspec.structs.replace(
            stats,
            reported_s=time.monotonic(),
            weight_version=stats.weight_version if confirmed is None else confirmed,
        )
        tokens, logprobs = reply.tokens.tolist(), reply.logprobs.tolist()
        versions = reply.versions.tolist()
        start = 0
        for handle, count in zip(reply.handles.tolist(), reply.counts.tolist(), strict=True):
            written = slice(start, start + count)
            start += count
            if (running := self._logs.get(handle)) is not None:
                running.tokens += tokens[written]
                running.logprobs += logprobs[written]
                running.versions += versions[written]
                running.attempt.generated_tokens = len(running.tokens)
        for end in reply.ends:
            self._finish(end)
        if reply.ends:
            self._changed()
        if reply.failure:
            self.lose(reply.failure)
        elif reply.silent_s > self._stall_timeout_s:
            self.lose(f"its engine has done nothing for {reply.silent_s:.0f} s")

    def _finish(self, end: End) -> None:
        running = self._logs.pop(end.handle, None)
        if running is not None:
            del self._handle_of[running.attempt]
            running.attempt.finish(_end(running, end.reason, end.detail, end))


def _end(running: _Log, reason: EndReason, detail: str, end: End | None = None) -> AttemptEnd:
    spans = end.spans if end is not None else []
    if not spans or spans[-1].end != len(running.tokens):
        # The engine did not say, so what was known when the tokens arrived counts.
        spans = to_spans(running.versions)
    drafted_at, accepted_at = (end.drafted_at, end.accepted_at) if end is not None else ([], [])
    return AttemptEnd(
        reason, running.tokens, running.logprobs, spans, detail, drafted_at, accepted_at
    )


def _future(reference: Any) -> "asyncio.Future[Any]":
    """A call's answer as a future that is never cancelled.

    Ray sets the result even of a cancelled future and fails in doing so; therefore wait for it with
    `asyncio.wait`, which cancels nothing.  Its exception counts as seen: a call may be given up.
    """
    future: asyncio.Future[Any] = asyncio.wrap_future(reference.future())
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def _reason(error: BaseException) -> str:
    """A Ray error in one line: the cause's own last line, without the remote traceback."""
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, BaseException) else error).strip()
    if isinstance(error, ray.exceptions.RayActorError):
        text = text.splitlines()[0] if text else type(error).__name__
    return " ".join(text.split()) or type(error).__name__
