"""A fleet whose attempts are carried out by somebody else's client.

`start` hands a lease to the attempt's payload (its `Holder`): where to go, under which request id.
The client asks that replica itself and tells how it ended; tokens never come through here.  So the
trainer's own data path stays what it was, and what is added is one small message per attempt.

What lies between a start and its end is not seen.  It is estimated from the speed that sequences
had lately, or known where somebody looks into the engines (`read`).

Every lease ends exactly once: told by its client, or lost with its replica or its client.  An abort
is repeated until then, since it may overtake its request, or meet it while the trainer holds the
replica's door shut.  A replica that aborts what nobody asked it to abort is at the trainer's
disposal: it rests for a moment, or as long as it is seen paused.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from steersman.estimators.errors import FleetError, UnknownNameError
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    AttemptRequest,
    EndReason,
    LogprobProbe,
    NamedTensors,
    ReplicaInfo,
    ReplicaStats,
    VersionSpan,
)
from steersman.mechanisms.leases.counters import Counters
from steersman.mechanisms.leases.lease import UNSEEN, EngineReading, Holder, LeaseEnd

AGAIN_S = (0.05, 1.0)
"""From an abort to its repetition: the first, doubling up to the last."""
REST_S = (0.25, 2.0)
"""That a replica rests after an abort of its own, doubling while it sends everything back at once:
a trainer that moves its requests elsewhere waits for a fifth of a second without any in flight."""
LAST_WORDS_S = 5.0
"""For the clients of a lost replica to tell what they got before it went."""

AbortRequests = Callable[[str, Sequence[str]], Awaitable[None]]
"""Ask a replica to abort requests, by their attempt ids; those that it does not know do not
matter."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Lease:
    attempt: Attempt
    started_s: float
    seen_tokens: int = 0
    seen_s: float = 0.0
    aborting: bool = False


@dataclass(eq=False, slots=True)
class _Replica:
    info: ReplicaInfo
    present: bool = True
    lost: bool = False
    rests_until_s: float = float("-inf")
    rest_s: float = REST_S[0]
    counters: Counters = field(default_factory=Counters)
    leases: dict[str, _Lease] = field(default_factory=dict)


class LeaseFleet:
    """Implements `Fleet`.  To be used from one event loop."""

    def __init__(
        self, abort: AbortRequests, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.changed = asyncio.Event()
        self._abort_requests, self._clock = abort, clock
        self._replicas: dict[str, _Replica] = {}
        self._leases: dict[str, _Lease] = {}
        """Open ones, by attempt id."""
        self._aborts: dict[str, list[str]] = {}
        """To be sent at the end of this turn of the loop, by replica."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    # Its replicas

    def add(self, info: ReplicaInfo) -> None:
        """A replica joins, or comes back."""
        known = self._replicas.get(info.name)
        if known is None:
            self._replicas[info.name] = _Replica(info)
        else:
            known.info, known.present, known.lost = info, True, False
            known.rests_until_s = float("-inf")
        self.changed.set()

    def describe(self, info: ReplicaInfo) -> None:
        """More is known of a replica that joined before."""
        self._replica(info.name).info = info

    def remove(self, name: str) -> None:
        """Nothing is started there any more; what runs ends as its clients tell."""
        self._replica(name).present = False
        self.changed.set()

    def lose(self, name: str, why: str) -> None:
        """The replica is gone; leases that are not told to have ended by `LAST_WORDS_S` are lost
        with it."""
        replica = self._replica(name)
        if replica.lost:
            return
        replica.lost = True
        for attempt_id in list(replica.leases):
            self._later(LAST_WORDS_S, self._lose_lease, attempt_id, why)
        self.changed.set()

    def read(self, name: str, reading: EngineReading) -> None:
        """Somebody has looked into the engine."""
        replica, now_s = self._replica(name), self._clock()
        was_paused = replica.counters.paused
        replica.counters.take(reading, now_s)
        for attempt_id, tokens in reading.tokens.items():
            if (lease := replica.leases.get(attempt_id)) is not None:
                lease.seen_tokens, lease.seen_s = tokens, now_s
        if was_paused != reading.paused:
            self.changed.set()

    def unread(self, name: str) -> None:
        """Nobody can look into it any more."""
        self._replica(name).counters.go_blind()

    # Its leases

    def end(self, attempt_id: str, end: LeaseEnd) -> bool:
        """A client tells how its attempt ended.  False: it is not open (any more)."""
        lease = self._leases.get(attempt_id)
        if lease is None:
            return False
        replica = self._replicas[lease.attempt.replica]
        now_s = self._clock()
        replica.counters.ended(attempt_id, end.tokens, now_s - lease.started_s)
        replica.counters.weight_version = max(replica.counters.weight_version, end.weight_version)
        if end.reason is EndReason.ABORT and not lease.aborting:
            self._rest(replica, at_once=not end.tokens)
        elif end.tokens:
            replica.rest_s = REST_S[0]
        self._finish(lease, end)
        return True

    def lose_lease(self, attempt_id: str, why: str) -> None:
        """Its client is gone; the replica is told to stop."""
        if (lease := self._leases.get(attempt_id)) is not None:
            self._put_abort(lease.attempt)
            self._lose_lease(attempt_id, why)

    def is_open(self, attempt_id: str) -> bool:
        """Whether its end has not been told yet."""
        return attempt_id in self._leases

    def present(self) -> list[str]:
        """Replicas that are there, whether they rest or not."""
        return [name for name, one in self._replicas.items() if one.present and not one.lost]

    @property
    def all_lost(self) -> bool:
        """Whether every replica there ever was is gone for good."""
        return bool(self._replicas) and all(one.lost for one in self._replicas.values())

    def leases(self, name: str) -> int:
        """Open ones on a replica."""
        return len(self._replica(name).leases)

    def estimate_progress(self) -> None:
        """Bring `generated_tokens` of the running attempts up to date, as well as can be told."""
        now_s = self._clock()
        for replica in self._replicas.values():
            counters = replica.counters
            per_s = 0.0 if counters.paused else counters.speed.tokens_per_s
            for lease in replica.leases.values():
                guess = lease.seen_tokens + int(per_s * (now_s - lease.seen_s))
                most = lease.attempt.request.max_tokens - 1  # with the last one it would have ended
                attempt = lease.attempt
                attempt.generated_tokens = max(min(guess, most), attempt.generated_tokens)

    # Fleet

    @property
    def replicas(self) -> Sequence[ReplicaInfo]:
        """In the order in which they joined."""
        return [replica.info for replica in self._replicas.values()]

    def is_alive(self, replica: str) -> bool:
        """Whether it is there, and neither paused nor resting."""
        one = self._replicas[replica]
        resting = self._clock() < one.rests_until_s
        return one.present and not (one.lost or one.counters.paused or resting)

    def stats(self, replica: str) -> ReplicaStats:
        one = self._replicas[replica]
        return one.counters.stats(one.info, len(one.leases))

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        attempt, one = Attempt(request, replica), self._replicas[replica]
        holder = request.payload
        if not isinstance(holder, Holder):
            attempt.finish(
                AttemptEnd(EndReason.REFUSED, [], [], [], "it has no client to carry it out")
            )
        elif not one.present or one.lost:
            attempt.finish(AttemptEnd(EndReason.LOST, [], [], [], f"{replica} is not there"))
        else:
            now_s = self._clock()
            lease = _Lease(attempt, now_s, seen_s=now_s)
            self._leases[request.attempt_id] = one.leases[request.attempt_id] = lease
            holder.granted(attempt)
        return attempt

    def abort(self, attempt: Attempt) -> None:
        lease = self._leases.get(attempt.request.attempt_id)
        if lease is not None and not lease.aborting:
            lease.aborting = True
            self._ask(lease, AGAIN_S[0])

    def draft(self, replica: str, draft_tokens: int) -> None:
        """Drafts cannot be steered through a trainer's client."""

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        """Drafts cannot be steered through a trainer's client."""

    async def update_weights(
        self, tensors: NamedTensors, weight_version: int, probes: Iterable[LogprobProbe] = ()
    ) -> float | None:
        raise FleetError("engines under leases get their weights from the trainer itself")

    async def score(self, replica: str, token_ids: list[int]) -> list[float]:
        raise FleetError("engines under leases are not asked for scores")

    async def close(self) -> None:
        """Leave the engines as they are; leases that are open end as lost."""
        for timer in self._timers:
            timer.cancel()
        for attempt_id in list(self._leases):
            self._lose_lease(attempt_id, "the fleet was closed")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Inside

    def _replica(self, name: str) -> _Replica:
        if (replica := self._replicas.get(name)) is None:
            raise UnknownNameError("replica", name, self._replicas)
        return replica

    def _finish(self, lease: _Lease, end: LeaseEnd) -> None:
        attempt_id = lease.attempt.request.attempt_id
        del self._leases[attempt_id]
        del self._replicas[lease.attempt.replica].leases[attempt_id]
        spans = [VersionSpan(end.weight_version, 0, end.tokens)] if end.tokens else []
        lease.attempt.finish(
            AttemptEnd(end.reason, [UNSEEN] * end.tokens, [], spans, detail=end.detail)
        )
        self.changed.set()

    def _lose_lease(self, attempt_id: str, why: str) -> None:
        if (lease := self._leases.get(attempt_id)) is not None:
            self._finish(lease, LeaseEnd(EndReason.LOST, detail=why))

    def _rest(self, replica: _Replica, at_once: bool) -> None:
        now_s = self._clock()
        if now_s < replica.rests_until_s:
            return  # one of many that it sent back together
        replica.rest_s = min(2 * replica.rest_s, REST_S[1]) if at_once else REST_S[0]
        replica.rests_until_s = now_s + replica.rest_s
        self._later(replica.rest_s, self.changed.set)

    def _ask(self, lease: _Lease, again_s: float) -> None:
        if lease.attempt.end is None:
            self._put_abort(lease.attempt)
            self._later(again_s, self._ask, lease, min(2 * again_s, AGAIN_S[1]))

    def _put_abort(self, attempt: Attempt) -> None:
        if not self._aborts:
            asyncio.get_running_loop().call_soon(self._send_aborts)
        self._aborts.setdefault(attempt.replica, []).append(attempt.request.attempt_id)

    def _send_aborts(self) -> None:
        aborts, self._aborts = self._aborts, {}
        for replica, attempt_ids in aborts.items():
            if not self._replicas[replica].lost:
                task = asyncio.create_task(self._send(replica, attempt_ids))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send(self, replica: str, attempt_ids: list[str]) -> None:
        try:
            await self._abort_requests(replica, attempt_ids)
        except Exception as error:  # it is repeated; a replica that is gone is found out elsewhere
            log.debug("aborting %d requests on %s failed: %r", len(attempt_ids), replica, error)

    def _later(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        timer: asyncio.TimerHandle

        def run() -> None:
            self._timers.discard(timer)
            call(*args)

        timer = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(timer)
