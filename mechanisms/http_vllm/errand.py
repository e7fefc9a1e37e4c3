"""One attempt on one engine: asked over HTTP, read as it is written, ended exactly once.

Usually nothing has to be waited for: the request is written on a kept connection at once, the
answer is taken piece by piece as it comes, and with its last token the attempt has ended.  Whatever
else happens (there is no connection, an error, a break, a move, words that must be waited for) is
for a task, which goes on with the answer in hand; its done-callback is what ends the attempt then,
so that nothing that happens to the task, not even a cancellation before its first step, leaves an
attempt without an end.  A natural end that is already here beats whatever it was stopped for.  What
is left of an answer after its end is read on for a moment: then its connection can be used again.
"""

import asyncio
import dataclasses
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from yarl import URL

from steersman.mechanisms.fleet import Attempt, AttemptEnd, EndReason, VersionSpan
from steersman.mechanisms.http_vllm.ask import Answer, Ask, Delta
from steersman.mechanisms.http_vllm.dialects.logprobs import values_of
from steersman.mechanisms.http_vllm.place import Place
from steersman.mechanisms.http_vllm.probe import as_version
from steersman.mechanisms.http_vllm.response import Response
from steersman.mechanisms.http_vllm.sse import DONE, Events
from steersman.mechanisms.http_vllm.wire import whole

log = logging.getLogger(__name__)

LAST_WORDS_S = 2.0
"""For what an engine still says after the last token, or after it was told to abort."""
BUSY_S = 0.25
"""An attempt on an engine that turns requests away lasts so long, so that three of them are not
over before it has caught its breath."""
_MAY_GO_ON = (EndReason.ABORT, EndReason.LOST, EndReason.ERROR)
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

_decode = msgspec.json.Decoder().decode


class RefusedError(Exception):
    """The engine says no; `answer` holds its words."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(_words(answer))
        self.answer = answer


@dataclass(eq=False, slots=True)
class Errand:
    """One attempt under way."""

    attempt: Attempt
    ask: Ask
    place: Place
    aborted: bool = False
    """Its submitter asked for its end."""
    lost: str = ""
    """Why its engine is given up; empty: it is not."""
    abort_id: str = ""
    """Its name inside the engine; empty: none, or not asked yet."""
    start: int = 0
    """Tokens that the ask held when it began."""
    natural: EndReason | None = None
    """How the model ended it."""
    ended_by_engine: bool = False
    """The engine aborted it."""
    spans: list[VersionSpan] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    task: "asyncio.Task[tuple[EndReason, str]] | None" = None
    _told_all: bool = False
    """Its answer is complete, but for words that tell nothing."""
    _response: Response | None = None
    _events: Events = field(default_factory=Events)

    def begin(self) -> None:
        """Ask the engine."""
        self.start = len(self.ask.token_ids)
        self.ask.answer = None
        response = self._sent_at_once()
        if response is None:
            self._begin_task()
        else:
            self._response = response
            response.give(self._feed)
            response.call(self._called)

    def stop(self) -> None:
        """Close its connection."""
        if self.task is None:
            if self.attempt.end is not None:
                return
            self._begin_task()
        assert self.task is not None
        self.task.cancel()

    def _begin_task(self) -> None:
        if self._response is not None:
            self._response.call(None)
        self.task = asyncio.create_task(self._carry(), name=self.attempt.request.attempt_id)
        self.task.add_done_callback(self._over)

    def _sent_at_once(self) -> Response | None:
        if self.ask.dialect is None:
            return None
        try:
            return self.place.wire.connections.at_once(*self._request())
        except Exception:  # the task will meet it again, and has means to end the attempt by it
            return None

    def _called(self) -> None:
        """Something happened to an answer that no task waits for."""
        response = self._response
        assert response is not None
        if self._told_all and self.natural is not None and not response.broken:
            response.let_go(LAST_WORDS_S)
        elif response.refused:
            response.give(None)  # its body is no stream of events: the task reads it
            self._begin_task()
        elif self._wants_task(response):
            self._begin_task()

    def _wants_task(self, response: Response) -> bool:
        """Not if all that came is a head."""
        ended = self.natural is not None or self._heard_out()
        return ended or response.broken or response.at_eof()

    async def _carry(self) -> tuple[EndReason, str]:
        ask = self.ask
        try:
            while True:
                async with await self._opened() as response:
                    if response.refused:
                        raise RefusedError(await whole(response))
                    if ask.dialect is None:
                        return await self._relay(response)
                    end = await self._read(response)
                self._response = None
                if not ask.cut or self.aborted:
                    return end
                self._events = Events()  # its dialect goes on in another request
        except RefusedError as error:
            return await self._refused(error)
        except (OSError, TimeoutError) as error:
            return await self._broken(error)

    async def _opened(self) -> Response:
        """The answer in hand, or the head of one that is asked for now."""
        if self._response is None or not self._response.begun:
            pool = self.place.wire.connections
            self._response = await pool.request(*self._request(), sent=self._response)
        return self._response

    def _request(self) -> tuple[str, URL, bytes, dict[str, str]]:
        ask, place = self.ask, self.place
        if ask.dialect is None:
            url = URL(f"{place.base}".rstrip("/") + ask.path, encoded=True)
            return ask.method, url, ask.body, dict(ask.headers)
        put = ask.dialect.resume if ask.deltas else ask.dialect.ask
        upstream = put(ask, self.attempt.request.attempt_id, place.abilities)
        self.abort_id = upstream.abort_id
        return "POST", place.url(upstream.path), upstream.body, dict(upstream.headers)

    # Reading

    async def _read(self, response: Response) -> tuple[EndReason, str]:
        """Until `[DONE]`; what the engine says after its last token is waited for only a moment."""
        response.give(self._feed)
        with suppress(TimeoutError):
            while response.broken or not (self._heard_out() or response.at_eof()):
                if self.natural is None:
                    await response.moved()
                else:
                    async with asyncio.timeout(LAST_WORDS_S):
                        await response.moved()
        if self.natural is not None:
            self._finish(self.natural, "")
            if self._told_all:
                await _read_out(response)
            return self.natural, ""
        if self.ask.cut or self.ended_by_engine:
            return EndReason.ABORT, ""
        return EndReason.ERROR, "its answer ended before it was complete"

    def _feed(self, piece: bytes) -> bool:
        """Take a piece of the answer; whether the task has something to do about it.

        Called as the piece comes, so that an answer is complete in the same turn of the event loop.
        """
        if self._heard_out():
            return True
        before = self.natural
        for payload in self._events.feed(piece):
            if payload == DONE:
                self._told_all = True
                break
            event = _decode(payload)
            self._take(event)
            if self.ask.cut:
                break
            if self.natural is not None:
                more = bool(event.get("choices"))
                if not more:
                    self.place.usage(event)
                if not (more and self.ask.awaits_usage):
                    self._told_all = True  # nothing but `[DONE]` comes after it
                    break
        self.attempt.generated_tokens = len(self.ask.token_ids) - self.start
        if self._told_all and self.natural is not None:
            self._finish(self.natural, "")
        return self._heard_out() or self.natural is not before

    def _heard_out(self) -> bool:
        """Nothing that this answer still says is of use."""
        return self._told_all or self.ask.cut

    def _take(self, event: dict[str, Any]) -> None:
        if (error := event.get("error")) is not None and not event.get("choices"):
            code = error.get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR
            raise RefusedError(Answer(status, msgspec.json.encode(event)))
        ask = self.ask
        assert ask.dialect is not None
        delta = ask.dialect.read(ask, event)
        if delta is not None:
            self._note(delta)

    def _note(self, delta: Delta) -> None:
        ask = self.ask
        reason = delta.finish_reason
        if reason == "abort":
            self.ended_by_engine = True
            delta = dataclasses.replace(delta, finish_reason=None)
        elif reason == "error":
            raise RefusedError(Answer(500, b'{"error":{"message":"the engine failed it"}}'))
        elif reason is not None:
            self.natural = EndReason.LENGTH if reason == "length" else EndReason.STOP
        self.place.heard(delta.weight_version)
        start = len(ask.token_ids) - self.start
        if delta.token_ids or delta.text or delta.finish_reason is not None:
            ask.take(delta)
        self._versions(delta, start, len(ask.token_ids) - self.start)
        self.logprobs += values_of(delta.logprobs)

    def _versions(self, delta: Delta, start: int, end: int) -> None:
        """Of the new tokens; or of all, where the engine tells them at the end."""
        told = _spans(delta.rest.get("weight_versions"), self.start, end)
        if told:
            self.spans = told
        elif end > start:
            version = delta.weight_version
            version = self.place.weight_version() if version is None else version
            if self.spans and self.spans[-1].weight_version == version:
                start = self.spans.pop().start
            self.spans.append(VersionSpan(version, start, end))

    async def _relay(self, response: Response) -> tuple[EndReason, str]:
        """Send on an answer as it is: whole events of a stream, or everything at its end."""
        ask = self.ask
        content_type = response.headers.get("content-type", "")
        if ask.on_event is None or not content_type.startswith("text/event-stream"):
            ask.answer = await whole(response)
            return EndReason.STOP, ""
        while piece := await response.readany():
            self.place.heard(None)
            if blocks := self._events.blocks(piece):
                ask.shown = True
                ask.on_event(b"\n\n".join([*blocks, b""]))
                if blocks[-1].endswith(DONE):
                    self.natural = EndReason.STOP
        if self.natural is None:
            return EndReason.ERROR, "its answer ended before it was complete"
        ask.answer = Answer(response.status, b"", content_type)
        return EndReason.STOP, ""

    # Ending

    async def _refused(self, error: RefusedError) -> tuple[EndReason, str]:
        status = error.answer.status
        self.ask.answer = error.answer
        if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _BUSY:
            return EndReason.REFUSED, str(error)
        if not await self.place.is_well():
            return EndReason.LOST, str(error)
        if status in _BUSY:
            await asyncio.sleep(BUSY_S)
        return EndReason.ERROR, str(error)

    async def _broken(self, error: BaseException) -> tuple[EndReason, str]:
        """The connection broke: ask for the engine's health before anything goes there again."""
        well = await self.place.is_well()
        why = f"its connection broke: {_reason(error)}"
        begun = len(self.ask.token_ids) > self.start or self.ask.shown
        if well and not begun and not isinstance(error, TimeoutError):
            # A request that no engine answers must not circulate for ever.  (An engine that is slow
            # to take connections has cost the attempt some seconds: that is brake enough.)
            return EndReason.ERROR, why
        return EndReason.LOST, why

    def _over(self, task: "asyncio.Task[tuple[EndReason, str]]") -> None:
        """The task is over, however: end the attempt."""
        if task.cancelled():
            reason = EndReason.LOST if self.lost or not self.aborted else EndReason.ABORT
            detail = self.lost
        elif (error := task.exception()) is not None:
            log.error("attempt %s failed", self.attempt.request.attempt_id, exc_info=error)
            reason, detail = EndReason.ERROR, _reason(error)
        else:
            reason, detail = task.result()
            if self.lost and reason is EndReason.ERROR:
                reason, detail = EndReason.LOST, self.lost
            if self.aborted and reason in (EndReason.ERROR, EndReason.LOST):
                reason = EndReason.ABORT
        if self._response is not None:
            self._response.close()
        self._finish(self.natural or reason, detail)

    def _finish(self, reason: EndReason, detail: str) -> None:
        ask = self.ask
        if self.attempt.end is not None:
            return
        if reason in _MAY_GO_ON and self._cannot_go_on:
            if ask.restartable:
                answer = ask.answer
                ask.renew()
                ask.answer = answer
            else:
                reason, detail = EndReason.REFUSED, f"it cannot be carried on: {detail}"
        tokens = ask.token_ids[self.start :]
        logprobs = self.logprobs if len(self.logprobs) == len(tokens) else []
        spans = self.spans if tokens else []
        self.place.ended(self.attempt)
        self.attempt.finish(AttemptEnd(reason, tokens, logprobs, spans, detail))

    @property
    def _cannot_go_on(self) -> bool:
        """Whether it must begin again; not where only its submitter can have ended it for good."""
        ask = self.ask
        if self.aborted and not ask.movable:
            return False
        return not ask.resumable or (ask.dialect is None and ask.shown)


async def _read_out(pieces: Response) -> None:
    """To the very end, which is due: then the connection can be used again."""
    if pieces.at_eof():
        return
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(LAST_WORDS_S):
            while await pieces.readany():
                pass


def _spans(told: Any, start: int, tokens: int) -> list[VersionSpan]:
    """An engine's spans of a whole answer, from its token `start` on.

    Empty where they are no numbers, or do not cover the `tokens` that this attempt wrote.
    """
    spans = []
    for span in told or ():
        version, end = as_version(span["version"]), span["end"] - start
        if version is None:
            return []
        if end > 0:
            spans.append(VersionSpan(version, max(span["start"] - start, 0), end))
    return spans if spans and spans[-1].end == tokens else []


def _words(answer: Answer) -> str:
    """An engine's refusal in a line."""
    try:
        message = _decode(answer.body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = answer.body[:200].decode(errors="replace")
    return f"{answer.status}: {' '.join(str(message).split())}"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
