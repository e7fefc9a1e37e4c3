"""One answer on one connection, its body taken as it comes: by who waits, or by callbacks."""

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Protocol, Self

HIGH_WATER = 1 << 20
"""Bytes of a body that wait to be read before its server is asked to hold on."""


class Held(Protocol):
    """The connection, as far as an answer needs it."""

    def release(self, complete: bool) -> None:
        """The answer is not wanted any more."""

    def hold(self, held: bool) -> None:
        """Let the server wait, or go on."""


class Response:
    """The answer on one connection; its body is read as it comes.

    Close it when done: a connection whose answer was read to its end serves the next request.
    """

    def __init__(self, connection: Held) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By lower-case name; the last of several wins."""
        self._connection: Held | None = connection
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._taker: Callable[[bytes], bool] | None = None
        self._caller: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._begun = self._complete = False

    async def readany(self) -> bytes:
        """Whatever has come; empty at the end.  Raises `OSError` where the connection broke."""
        while not self._pieces:
            if self._complete:
                return b""
            await self._wait()
        return self.read_nowait()

    def give(self, taker: Callable[[bytes], bool] | None) -> None:
        """From now on `taker` gets the body, each piece as it comes and not in some task's turn.

        It answers whether `moved` shall return; what it raises, `moved` raises.  None: the body
        waits again for who reads it.
        """
        self._taker = taker
        if taker is not None and self._pieces:
            self.body(self.read_nowait())

    def call(self, caller: Callable[[], None] | None) -> None:
        """From now on `caller` is called where somebody who waits would go on, and nobody does: at
        the head, when the taker wants it, at the end, when the connection breaks.  None: no more.
        """
        self._caller = caller

    async def moved(self) -> None:
        """Until `give`'s taker wants it, or the body ends."""
        if self._error is None and not self._complete:
            await self._wait()
        if self._error is not None:
            raise self._error

    def read_nowait(self) -> bytes:
        """What is here already."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._waiting > HIGH_WATER and self._connection is not None:
            self._connection.hold(False)
        self._waiting = 0
        return data

    async def read(self) -> bytes:
        """All of the body."""
        parts = []
        while part := await self.readany():
            parts.append(part)
        return b"".join(parts)

    def at_eof(self) -> bool:
        """Whether the end has come and everything was read."""
        return self._complete and not self._pieces

    def close(self) -> None:
        """Give the connection back, or end it where the answer is not complete.  Idempotent."""
        connection, self._connection = self._connection, None
        # they may know this answer: a circle that only the collector would end
        self._taker = self._caller = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if connection is not None:
            connection.release(self._complete)

    def let_go(self, within_s: float) -> None:
        """Close it as soon as the end has come, at the latest in so many seconds."""
        if self._complete:
            self.close()
            return
        self._taker, self._caller = _not_wanted, self.close
        self._patience = asyncio.get_running_loop().call_later(within_s, self.close)

    @property
    def refused(self) -> bool:
        """Its status tells of an error."""
        return self.status >= HTTPStatus.BAD_REQUEST

    @property
    def broken(self) -> bool:
        """The connection broke, or the taker raised."""
        return self._error is not None

    @property
    def begun(self) -> bool:
        """Its head has come."""
        return self._begun

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def head(self) -> None:
        """Wait for status and headers."""
        while not self._begun:
            await self._wait()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._caller is not None:
            self._caller()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Told by the connection

    def begin(self, status: int) -> None:
        """The headers are complete."""
        self.status, self._begun = status, True
        self._wake()

    def body(self, data: bytes) -> int:
        """A piece of the body; returns how much waits to be read."""
        if self._taker is not None:
            if self._error is not None:
                return 0
            try:
                wanted = self._taker(data)
            except Exception as error:
                self._error, wanted = error, True
            if wanted:
                self._wake()
            return 0
        self._pieces.append(data)
        self._waiting += len(data)
        self._wake()
        return self._waiting

    def complete(self) -> None:
        """The body has ended."""
        self._complete = True
        self._wake()

    def broke(self, error: Exception) -> None:
        """The connection is gone."""
        if not self._complete:
            self._error = error
            self._wake()


def _not_wanted(_: bytes) -> bool:
    return False
