"""Retries: a client that asks again because it got no answer gets the answer of what it asked.

A request with an `Idempotency-Key` is answered once: whoever repeats it while it is open waits for
the same answer, whoever repeats it later gets the same bytes, and if its client goes away it runs
on for `GRACE_S`.  An `X-Request-Id` alone names a request, not an answer (a trainer may give all
samples of a prompt one id, and must not get one sample eight times); it counts as a key only where
the client says that it retries (`X-Stainless-Retry-Count`, as OpenAI's clients send).

After a restart of the gateway nothing is known of earlier requests, whose work ended with their
connections: a retry simply runs.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from steersman.controller.gateway.reply import Reply
from steersman.estimators.errors import InvalidInputError

GRACE_S = 30.0
"""A client with a key that lost its connection comes back sooner: clients wait .5 to 8 s."""
KEEP_S = 600.0
"""Answers are kept so long for those that repeat a request."""
KEEP_BYTES = 64 << 20
"""Of answers, together; the oldest go first."""


@dataclass(frozen=True, slots=True)
class RetryKey:
    """By which a request is known again."""

    name: str
    digest: bytes
    """Of path and body."""
    explicit: bool
    retried: bool
    """It repeats an earlier request."""

    @classmethod
    def of(cls, headers: Mapping[str, str], path: str, raw: bytes) -> "RetryKey | None":
        """None: it has no name."""
        key, request_id = headers.get("Idempotency-Key"), headers.get("X-Request-Id")
        if key is None and request_id is None:
            return None
        digest = blake2b(path.encode() + b"\0" + raw, digest_size=16).digest()
        if key is not None:
            return cls(f"key:{key}", digest, explicit=True, retried=True)
        count = headers.get("X-Stainless-Retry-Count", "0")
        return cls(f"id:{request_id}", digest, explicit=False, retried=count not in ("", "0"))


class _Entry:
    """A request under way, or its answer."""

    __slots__ = ("digest", "done_s", "grace_s", "task", "waiters")

    def __init__(self, key: RetryKey, task: asyncio.Task[Reply]) -> None:
        self.digest, self.task = key.digest, task
        self.grace_s = GRACE_S if key.explicit else 0.0
        self.waiters, self.done_s = 0, 0.0


class Retries:
    """Requests that have a name, open ones and those answered a while ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, _Entry] = {}
        self._answered: OrderedDict[str, _Entry] = OrderedDict()
        """Oldest first."""
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._open) + len(self._answered)

    def find(self, key: RetryKey | None) -> _Entry | None:
        """What `key` repeats.  Raises `InvalidInputError` if it is used for something else."""
        self._forget_old()
        if key is None or not key.retried:
            return None
        entry = self._open.get(key.name) or self._answered.get(key.name)
        if entry is None:
            return None
        if entry.digest != key.digest:
            if key.explicit:
                raise InvalidInputError("this Idempotency-Key was used for another request")
            return None
        return entry

    def run(self, key: RetryKey, work: Coroutine[Any, Any, Reply]) -> _Entry:
        """Begin a request; it is forgotten if it fails."""
        entry = _Entry(key, asyncio.create_task(work, name="steersman-request"))
        if key.name not in self._open:
            self._open[key.name] = entry
            entry.task.add_done_callback(lambda task: self._done(key.name, entry))
        return entry

    async def wait(self, entry: _Entry) -> Reply:
        """Its answer.  If nobody waits any more, it is given up, at once or after the grace."""
        entry.waiters += 1
        try:
            return await asyncio.shield(entry.task)
        finally:
            entry.waiters -= 1
            if entry.waiters == 0 and not entry.task.done():
                loop = asyncio.get_running_loop()
                loop.call_later(entry.grace_s, self._give_up, entry)

    async def close(self) -> None:
        """Give up whatever is under way."""
        tasks = [entry.task for entry in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_up(self, entry: _Entry) -> None:
        if entry.waiters == 0:
            entry.task.cancel()

    def _done(self, name: str, entry: _Entry) -> None:
        del self._open[name]
        failed = entry.task.cancelled() or entry.task.exception() is not None
        if failed or entry.task.result().status >= 500:
            return
        entry.done_s = self._clock()
        self._forget(name)
        self._answered[name] = entry
        self._kept_bytes += len(entry.task.result().body)
        self._forget_old()

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._answered:
            name, entry = next(iter(self._answered.items()))
            if now_s - entry.done_s < KEEP_S and self._kept_bytes <= KEEP_BYTES:
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        entry = self._answered.pop(name, None)
        if entry is not None:
            self._kept_bytes -= len(entry.task.result().body)
