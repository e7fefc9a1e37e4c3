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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

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


class Entry:
    """A request under way, or its answer."""

    __slots__ = ("answer", "digest", "done_s", "give_up", "grace_s", "waiters")

    def __init__(self, key: RetryKey, give_up: Callable[[], None]) -> None:
        self.digest, self.give_up = key.digest, give_up
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.grace_s = GRACE_S if key.explicit else 0.0
        self.waiters, self.done_s = 0, 0.0

    def resolve(self, reply: Reply) -> None:
        """Its answer is here; not wanted if it was given up."""
        if not self.answer.done():
            self.answer.set_result(reply)


class Retries:
    """Requests that have a name, open ones and those answered a while ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, Entry] = {}
        self._answered: OrderedDict[str, Entry] = OrderedDict()
        """Oldest first."""
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._open) + len(self._answered)

    def find(self, key: RetryKey | None) -> Entry | None:
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

    def begin(self, key: RetryKey, give_up: Callable[[], None]) -> Entry:
        """A request begins, whose answer its `resolve` will be told; it is forgotten if it fails.

        `give_up` is called when nobody waits for it any more.
        """
        entry = Entry(key, give_up)
        if key.name not in self._open:
            self._open[key.name] = entry
            entry.answer.add_done_callback(lambda _: self._done(key.name, entry))
        return entry

    async def wait(self, entry: Entry) -> Reply:
        """Its answer, for one who comes and may leave."""
        self.join(entry)
        try:
            return await asyncio.shield(entry.answer)
        finally:
            self.leave(entry)

    def join(self, entry: Entry) -> None:
        """One more waits for it."""
        entry.waiters += 1

    def leave(self, entry: Entry) -> None:
        """One waits no more.  If it was the last, it is given up, at once or after the grace."""
        entry.waiters -= 1
        if entry.waiters == 0 and not entry.answer.done():
            asyncio.get_running_loop().call_later(entry.grace_s, self._give_up, entry)

    def close(self) -> None:
        """Give up whatever is under way."""
        for entry in list(self._open.values()):
            if entry.answer.cancel():
                entry.give_up()

    def _give_up(self, entry: Entry) -> None:
        if entry.waiters == 0 and entry.answer.cancel():
            entry.give_up()

    def _done(self, name: str, entry: Entry) -> None:
        del self._open[name]
        if entry.answer.cancelled() or entry.answer.result().status >= 500:
            return
        entry.done_s = self._clock()
        self._forget(name)
        self._answered[name] = entry
        self._kept_bytes += len(entry.answer.result().body)
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
            self._kept_bytes -= len(entry.answer.result().body)
