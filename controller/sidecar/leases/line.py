"""A worker's line to the router: all its trajectories' news in one stream, all their orders in one.

A worker holds hundreds of trajectories.  What they have to tell within one turn of the event loop
goes as one message, and one long poll fetches the orders of all, so that the router serves
thousands of trajectories with a few calls per worker and tick.  The poll tells the router that the
worker lives, and the worker that the router does.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steersman.controller.sidecar.leases.wire import Event, Order
from steersman.estimators.errors import SteersmanError

FETCH_S = 5.0
"""That a poll waits for orders: also the pulse by which either side knows that the other lives."""
PATIENCE_S = 30.0
"""Beyond that for its answer, or for that to a message: a router that decides for thousands may be
busy for a second."""
STARTING_S = 600.0
"""For its first answer: its actor may wait for a place, and it imports for seconds, or a minute on
a machine where engines start at the same time.  One that cannot start says so at once."""

log = logging.getLogger(__name__)


class RouterLostError(SteersmanError):
    """The router does not answer any more."""


@dataclass(frozen=True, slots=True)
class Mail:
    """The answer to a poll."""

    orders: list[Order]
    version: int
    """Of `servers`."""
    servers: dict[str, Any] | None
    """Handles by name, where they changed since the version that was asked with."""
    router_lost: str
    """What to do without the router: direct, or raise."""


@dataclass(eq=False, slots=True)
class Call:
    """One trajectory's end of the line."""

    number: int
    _orders: deque[Order] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: RouterLostError | None = None

    def put(self, order: Order) -> None:
        """An order has come."""
        self._orders.append(order)
        self._news.set()

    def lose(self, error: RouterLostError) -> None:
        """None will come any more."""
        self._lost = error
        self._news.set()

    async def next(self) -> Order:
        """The next order; `RouterLostError` if there will be none.  Cancelling loses nothing."""
        while not self._orders:
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            await self._news.wait()
        return self._orders.popleft()


class Line:
    """From one event loop of one process to the router."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self.loop = asyncio.get_running_loop()
        self.client = uuid.uuid4().hex
        self.servers: Mapping[str, Any] = {}
        """All that is known, by name; kept when the router is gone."""
        self.router_lost = "direct"
        self.lost: RouterLostError | None = None
        self._version = -1
        self._calls: dict[int, Call] = {}
        self._next_number = 0
        self._outgoing: list[Event] = []
        self._sending: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None

    def open(self) -> Call:
        """A new trajectory; `close` it in the end."""
        call = Call(self._next_number)
        self._next_number += 1
        self._calls[call.number] = call
        if self.lost is not None:
            call.lose(self.lost)
        elif self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch(), name="steersman-orders")
        return call

    def close(self, call: Call) -> None:
        """Nobody waits for its orders any more."""
        self._calls.pop(call.number, None)

    def tell(self, event: Event) -> None:
        """Send it, with all others of this turn of the loop, after those before it."""
        if self.lost is not None:
            return
        self._outgoing.append(event)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="steersman-events")

    @property
    def _patience_s(self) -> float:
        return PATIENCE_S if self._version >= 0 else STARTING_S

    async def _send(self) -> None:
        while self._outgoing and self.lost is None:
            events, self._outgoing = self._outgoing, []
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._router.steersman_tell.remote(self.client, events)
            except Exception as error:
                self._lose(error)

    async def _fetch(self) -> None:
        """As long as there is a call."""
        while self._calls and self.lost is None:
            try:
                async with asyncio.timeout(FETCH_S + self._patience_s):
                    mail: Mail = await self._router.steersman_fetch.remote(
                        self.client, self._version, FETCH_S
                    )
            except Exception as error:
                self._lose(error)
                return
            if mail.servers is not None:
                self.servers, self._version = mail.servers, mail.version
                self.router_lost = mail.router_lost
            for order in mail.orders:
                if (call := self._calls.get(order.call)) is not None:
                    call.put(order)

    def _lose(self, error: Exception) -> None:
        if self.lost is not None:
            return
        why = "it does not answer" if isinstance(error, TimeoutError) else _last_line(error)
        self.lost = RouterLostError(f"the router is lost: {why}")
        what = (
            "trajectories go to the engines directly from now on, the least loaded first"
            if self.router_lost == "direct"
            else "trajectories fail (router_lost = raise)"
        )
        log.warning("%s; %s", self.lost, what)
        for call in self._calls.values():
            call.lose(self.lost)


def _last_line(error: Exception) -> str:
    """Ray's errors hold a whole story; its point is at the end."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()}"
