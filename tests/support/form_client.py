"""A gateway in little: it answers one request with the forms and dialects, and cuts where told.

No fleet, no ledger: each ask is carried out by itself, attempt after attempt on the engines in
turn, until it has ended.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import aiohttp
import msgspec
from support.vllm_cases import Case

from steersman.controller.gateway.forms import FORMS
from steersman.controller.gateway.identity import Told
from steersman.controller.gateway.question import Question
from steersman.mechanisms.http_vllm.ask import Abilities, Answer, Ask, Delta, Upstream

MOST_ATTEMPTS = 60
ABILITIES = Abilities(
    generate=True, abort_path="/inference/v1/abort_requests", model="tiny", max_model_len=1024
)


class CannotGoOnError(Exception):
    """An ask cannot be carried on, and its client has seen some."""


class Wire(ABC):
    """The way to engines."""

    @abstractmethod
    def open(
        self, url: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """Status of the answer and the payloads of its events; its body if it is an error."""

    @abstractmethod
    async def abort(self, url: str, name: str) -> None:
        """Abort a request by its name inside the engine."""


class HttpWire(Wire):
    """To real ones."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @asynccontextmanager
    async def open(
        self, url: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        async with self._session.post(url + path, data=body, headers=headers) as response:
            yield response.status, _payloads(response)

    async def abort(self, url: str, name: str) -> None:
        body = {"request_ids": [name]}
        async with self._session.post(url + ABILITIES.abort_path, json=body) as response:
            assert response.status == 200


@dataclass(frozen=True)
class Cut:
    """Where an ask is cut, in tokens, and how."""

    at: int
    way: Literal["close", "abort"] = "close"


@dataclass
class FormClient:
    """Asks `urls` in turn."""

    wire: Wire
    urls: Sequence[str]
    cuts: Sequence[Cut] = ()
    """Where each ask is cut."""
    abilities: Abilities = ABILITIES
    attempts: list[Upstream] = field(default_factory=list)
    """What was asked."""
    begun_again: int = 0
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    @classmethod
    def over(cls, session: aiohttp.ClientSession, urls: Sequence[str], **fields: Any) -> Self:
        """Over HTTP."""
        return cls(HttpWire(session), urls, **fields)

    async def answer(self, case: Case) -> Any:
        """JSON of the answer, or the list of its events."""
        question = await self.question(case)
        assert question.form is not None
        if not question.streamed:
            return msgspec.json.decode(question.form.whole(question))
        events = question.info["events"] if question.info else []
        question.info = None
        return parsed(b"".join([*events, *question.form.closing(question)]))

    async def question(self, case: Case) -> Question:
        """With its asks carried out."""
        form, body = FORMS[case.path], dict(case.body)
        asks, group_of = form.asks(body, msgspec.json.encode(body), {}, self.abilities)
        assert asks[0].dialect is not None, "it would be sent on as it is"
        streamed = body.get("stream") is True
        prompts = [str(i) for i in range(max(group_of) + 1)]
        events: list[bytes] = []
        question = Question(
            form=form,
            request_id="0",
            path=case.path,
            body=body,
            asks=asks,
            group_of=group_of,
            prompts=prompts,
            streamed=streamed,
            created_unix_s=0,
            told=Told(),
            info={"events": events} if streamed else None,
        )
        for index, ask in enumerate(asks):
            if streamed:
                ask.on_delta = _listener(question, index, events)
            await self._carry_out(ask)
            assert ask.answer is None, ask.answer
        return question

    async def _carry_out(self, ask: Ask) -> None:
        cuts = list(self.cuts)
        for turn in range(MOST_ATTEMPTS):
            if await self._attempt(ask, self.urls[turn % len(self.urls)], cuts):
                return
            if not ask.resumable:
                if not ask.restartable:
                    raise CannotGoOnError
                self.begun_again += 1
                ask.renew()
        raise AssertionError("it never ended")

    async def _attempt(self, ask: Ask, url: str, cuts: list[Cut]) -> bool:
        """Whether the ask has ended.  Takes away the cut that it made."""
        dialect, name = ask.dialect, f"a{next(self._names)}"
        assert dialect is not None
        upstream = (dialect.resume if ask.deltas else dialect.ask)(ask, name, self.abilities)
        self.attempts.append(upstream)
        ended = False
        opened = self.wire.open(url, upstream.path, upstream.body, upstream.headers)
        async with opened as (status, payloads):
            async for payload in payloads:
                event = msgspec.json.decode(payload)
                if status != 200 or "error" in event:
                    ask.answer = Answer(status, payload)
                    return True
                delta = dialect.read(ask, event)
                if delta is None:
                    continue
                ask.take(delta)
                aborted = delta.finish_reason == "abort"
                ended = ended or (delta.finish_reason is not None and not aborted)
                if ask.cut:
                    return False
                if cuts and not ended and not aborted and len(ask.token_ids) >= cuts[0].at:
                    if cuts.pop(0).way == "close":
                        return False
                    await self.wire.abort(url, upstream.abort_id)
        return ended


async def answer_of(session: aiohttp.ClientSession, url: str, case: Case) -> Any:
    """JSON of an engine's own answer, or the list of its events."""
    async with session.post(url + case.path, json=case.body) as response:
        body = await response.read()
        assert response.status == 200, body
    return parsed(body) if case.body.get("stream") is True else msgspec.json.decode(body)


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream; it must end properly."""
    *events, done, rest = stream.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]


def _listener(question: Question, index: int, events: list[bytes]) -> Callable[[Delta], None]:
    first = True

    def wrote(delta: Delta) -> None:
        nonlocal first
        assert question.form is not None
        events.extend(question.form.chunk(question, index, delta, first))
        first = False

    return wrote


async def _payloads(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    if response.content_type != "text/event-stream":
        yield await response.read()
        return
    buffer = b""
    async for chunk in response.content.iter_any():
        buffer += chunk
        *complete, buffer = buffer.split(b"\n\n")
        for part in complete:
            if part != b"data: [DONE]":
                yield part.removeprefix(b"data: ")
