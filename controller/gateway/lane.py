"""The quick lane: a usual request is taken in, and answered, in the turns in which its bytes come.

aiohttp gives each request two tasks and lets it wait for its turn four times; with hundreds of
requests a second, each wait is in line behind the others (in the median .4 ms before a request is
begun, 2.7 ms in the last percent).  Usual requests need none of that.  A stream is written as its
engine's bytes come, once in each turn.  Whatever else comes (another route, a retry, a large body,
odd headers, what may not be asked, the next request before its time) makes the connection
aiohttp's, with all bytes that have come, for as long as it lives.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import responses
from typing import cast

from steersman.controller.gateway.asked import final_reply, overloaded, question_of
from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.outflow import Outflow
from steersman.controller.gateway.question import Question
from steersman.controller.gateway.reply import Reply, refusal
from steersman.controller.gateway.retries import Entry, Retries, RetryKey
from steersman.controller.gateway.room import OverloadedError
from steersman.controller.gateway.security import Tokens, too_late, unexpected
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.usual import MOST_BODY, Head, usual_head
from steersman.estimators.errors import InvalidInputError

IDLE_S = 3630.0
"""A connection is kept so long without a request: aiohttp's time, longer than a proxy's."""
SWEEP_S = 30.0
FAREWELL_S = 3.0
"""For answers on their way when the gateway ends.  A client that does not read them is cut off
after twice that where aiohttp serves it, which waits for its handler, and once more when that is
cancelled."""
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nCache-Control: no-cache\r\n"
    b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


class Lane(asyncio.Protocol):
    """One connection, as long as only usual requests come on it, one after the other."""

    def __init__(self, lanes: "Lanes") -> None:
        self._lanes = lanes
        self._transport: asyncio.Transport | None = None
        self._data = b""
        """What has come and is not begun."""
        self._head: Head | None = None
        self._question: Question | None = None
        self._entry: Entry | None = None
        """Of a request that has a name: a retry of it may wait for the same answer."""
        self._outflow: Outflow | None = None
        """Of a request that is streamed."""
        self._due = False
        """Some of it is to be sent: in the next turn, or when the client reads again."""
        self._limit: asyncio.TimerHandle | None = None
        self._unread = self._held = False
        """The client does not read; nothing is read of it."""
        self.idle_since_s = 0.0

    @property
    def idle(self) -> bool:
        """Between two requests."""
        return self._head is None

    def end(self) -> None:
        """Close it as soon as what was written is read."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it, whatever was not read."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        own = transport.get_extra_info("socket")
        if own is not None:  # a client whose machine is gone must be noticed
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._lanes.opened(self)

    def data_received(self, data: bytes) -> None:
        """Of a request; or of the next one, which waits until this one is answered."""
        self._data = self._data + data if self._data else data
        if self._question is None and not self._unread:
            self._go_on()
        elif len(self._data) > MOST_BODY and self._transport is not None and not self._held:
            self._held = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read: it gets no further answers, and no more of a stream."""
        self._unread = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._unread = False
        if self._due:
            self._send(self._outflow)
        elif self._question is None and self._data:
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        """Its client went away."""
        self._transport = None
        self._give_up()
        self._lanes.closed(self)

    # Inside

    def _go_on(self) -> None:
        head = self._head
        if head is None:
            lanes = self._lanes
            head = usual_head(self._data, lanes.settings.max_body_bytes, lanes.tokens)
            if head is None:
                self._hand_over()
                return
            self._head = head
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(lanes.settings.request_timeout_s, self._late)
        missing = head.total - len(self._data)
        if missing == 0:
            self._begin(head)
        elif missing < 0:
            self._hand_over()

    def _begin(self, head: Head) -> None:
        asked, lanes = head.asked, self._lanes
        raw = self._data[head.size :]
        key = RetryKey.of(asked.headers, asked.path, raw)
        if key is not None and key.retried:
            self._hand_over()
            return
        try:
            question = question_of(asked, raw, lanes.desk)
            self._data, self._question = b"", question
            lanes.desk.begin(question)
        except InvalidInputError as error:
            self._refuse(refusal(400, str(error)))
        except OverloadedError as error:
            self._refuse(overloaded(error))
        except Exception as error:
            self._refuse(unexpected(asked.path, error))
        else:
            if question.streamed:
                self._outflow = Outflow(question, lanes.desk)
                question.when_told(self._news)
                return
            if key is not None:
                self._entry = lanes.retries.begin(key, lambda: lanes.desk.abandon(question))
                lanes.retries.join(self._entry)
            question.when_finished(partial(self._finished, self._entry))

    def _refuse(self, reply: Reply) -> None:
        """It was not begun."""
        self._data = b""
        self._answer(reply)

    def _finished(self, entry: Entry | None, question: Question) -> None:
        reply = final_reply(question, self._lanes.desk)
        if entry is not None:
            entry.resolve(reply)
        if question is self._question:  # else a retry waits for it alone
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        self._end_with(_written(reply))

    def _news(self) -> None:
        """There is more of a stream; what comes in one turn is sent at once."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send, self._outflow)

    def _send(self, outflow: Outflow | None) -> None:
        """What is due of a stream, if its client reads and did not go away meanwhile."""
        question, transport = self._question, self._transport
        if outflow is not self._outflow or question is None or transport is None or self._unread:
            return
        assert outflow is not None
        self._due = False
        begun = outflow.begun
        try:
            instead = outflow.instead()
            events = b"" if instead is not None else outflow.take()
        except Exception as error:
            instead = unexpected(question.path, error)
        if instead is None:
            told = _chunk(events) if begun else STREAM_HEAD + _chunk(events)
            if outflow.over:
                question.release()
                self._end_with(told + LAST_CHUNK)
            else:
                transport.write(told)
        elif begun:  # no other answer can be given
            self.abort()
        else:
            self._give_up()
            self._answer(instead)

    def _end_with(self, told: bytes) -> None:
        """The last bytes of an answer."""
        self._question = self._head = self._outflow = None
        self._due = False
        self._leave_entry()
        self._stop_clock()
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(told)
        if self._lanes.closing:
            self._transport.close()
        elif self._data and not self._unread:
            self._hand_over()
        else:
            self.idle_since_s = asyncio.get_running_loop().time()

    def _late(self) -> None:
        """Its time is over.  If it has no answer in one piece, the connection's is over as well."""
        begun = self._question is not None
        if self._outflow is not None and self._outflow.begun:
            self.abort()
            return
        self._give_up()
        if not begun:
            self._data = b""
        self._answer(too_late(self._lanes.settings))
        if not begun and self._transport is not None:
            self._transport.close()

    def _give_up(self) -> None:
        """Nobody waits for the answer any more."""
        self._stop_clock()
        question, self._question = self._question, None
        if question is not None and self._entry is None:
            self._lanes.desk.abandon(question)
        if question is not None and question.streamed:
            question.release()
        self._leave_entry()

    def _stop_clock(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _leave_entry(self) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            self._lanes.retries.leave(entry)

    def _hand_over(self) -> None:
        """To aiohttp, with what has come."""
        transport, data, self._data = self._transport, self._data, b""
        self._stop_clock()
        if transport is None:
            return
        self._transport = None
        self._lanes.closed(self)
        handler = self._lanes.behind()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if self._unread:
            handler.pause_writing()
        handler.data_received(data)
        if self._held:
            transport.resume_reading()


class Lanes:
    """The lanes of one gateway; makes one for each connection that comes in."""

    def __init__(
        self, desk: Desk, settings: GatewayConfig, tokens: Tokens, retries: Retries
    ) -> None:
        self.desk, self.settings, self.tokens, self.retries = desk, settings, tokens, retries
        self.behind: Callable[[], asyncio.Protocol]
        """Makes a handler for a connection that is not for a lane."""
        self.closing = False
        self._open: set[Lane] = set()
        self._empty = asyncio.Event()
        self._sweeper: asyncio.TimerHandle | None = None

    def __call__(self) -> Lane:
        return Lane(self)

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, lane: Lane) -> None:
        """A connection has come in."""
        loop = asyncio.get_running_loop()
        lane.idle_since_s = loop.time()
        self._open.add(lane)
        self._empty.clear()
        if self._sweeper is None and not self.closing:
            self._sweeper = loop.call_later(SWEEP_S, self._sweep)

    def closed(self, lane: Lane) -> None:
        """It is closed, or aiohttp's."""
        self._open.discard(lane)
        if not self._open:
            self._empty.set()

    async def close(self) -> None:
        """End all of them; those with a request under way get a moment for it."""
        self.closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for lane in [lane for lane in self._open if lane.idle]:
            lane.end()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self._empty.wait()
        for lane in list(self._open):
            lane.abort()

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        for lane in list(self._open):
            if lane.idle and loop.time() - lane.idle_since_s > IDLE_S:
                lane.end()
        if self._open:
            self._sweeper = loop.call_later(SWEEP_S, self._sweep)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _written(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines.append(f"Content-Length: {len(reply.body)}\r\n\r\n")
    return "\r\n".join(lines).encode("latin-1", "replace") + reply.body
