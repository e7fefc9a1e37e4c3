"""What goes between a driver and a replica, and the mailbox that makes it lossless.

Driver to replica: numbered commands (requests to start, attempts to abort, tokens to draft).  Ray
may run the calls of an asynchronous actor out of order, so the replica applies commands by number;
an abort can never overtake its start.

Replica to driver: the reply to a long poll.  It carries every token since the last reply, so a
reply lost with its call would lose tokens.  Each reply is therefore numbered and kept until the
next poll acknowledges it; a poll that does not is answered with the same reply again.
"""

import asyncio
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steersman.mechanisms.fleet import AttemptRequest, EndReason, ReplicaStats, VersionSpan

COALESCE_S = 0.003
"""How long a reply waits for more ends after the first: about one iteration of a small model, in
which the siblings of a group often end together."""


@dataclass(frozen=True, slots=True)
class Command:
    """One batch from a driver; handles are the driver's own numbers for its attempts."""

    number: int
    starts: list[tuple[int, AttemptRequest]]
    aborts: list[int]
    speculate: dict[int, int] = field(default_factory=dict)
    """By attempt, tokens to draft for it; `AS_REPLICA` as for others."""
    draft: int | None = None
    """Tokens to draft for attempts without a number of their own; None: as before."""


@dataclass(frozen=True, slots=True)
class End:
    """An attempt ended; all its tokens are in this reply or in earlier ones."""

    handle: int
    reason: EndReason
    spans: list[VersionSpan]
    """As the engine reports them; empty if it did not."""
    detail: str = ""
    drafted_at: list[int] = field(default_factory=list)
    """Tokens drafted for it that were verified, by position in their drafts."""
    accepted_at: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reply:
    """Everything new since the last reply."""

    number: int
    handles: NDArray[np.int64]
    """(n,) attempts with new tokens."""
    counts: NDArray[np.int32]
    """(n,) how many each."""
    tokens: NDArray[np.int32]
    """(sum of counts,) in the order of `handles`."""
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    """(sum of counts,) weight version known when each token was received."""
    ends: list[End]
    stats: ReplicaStats
    silent_s: float
    """Seconds for which the engine has work and does none."""
    failure: str = ""
    """Why the engine is dead; empty while it lives."""


@dataclass(slots=True)
class _Written:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Mailbox:
    """One driver's unread news."""

    def __init__(self) -> None:
        self._written: dict[int, _Written] = {}
        self._ends: list[End] = []
        self._wake = asyncio.Event()
        self._unacknowledged: Reply | None = None
        self._number = 0

    def write(
        self, handle: int, tokens: list[int], logprobs: list[float], weight_version: int
    ) -> None:
        """An attempt has new tokens."""
        written = self._written.setdefault(handle, _Written())
        written.tokens += tokens
        written.logprobs += logprobs
        written.versions += [weight_version] * len(tokens)

    def finish(self, end: End) -> None:
        """An attempt has ended."""
        self._ends.append(end)
        self._wake.set()

    def wake(self) -> None:
        """Let the waiting poll answer now."""
        self._wake.set()

    def unread(self, acknowledged: int) -> Reply | None:
        """The reply that has not been acknowledged, to be sent again."""
        if self._unacknowledged and self._unacknowledged.number > acknowledged:
            return self._unacknowledged
        self._unacknowledged = None
        return None

    async def wait(self, wait_s: float) -> None:
        """Until an attempt ends, or for `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
            await asyncio.sleep(COALESCE_S)
        except TimeoutError:
            pass
        self._wake.clear()

    def take(self, stats: ReplicaStats, silent_s: float, failure: str) -> Reply:
        """Everything new, as the reply to keep until it is acknowledged."""
        written, self._written = self._written, {}
        ends, self._ends = self._ends, []
        self._number += 1
        parts = list(written.values())
        self._unacknowledged = Reply(
            number=self._number,
            handles=np.fromiter(written, np.int64, len(written)),
            counts=np.array([len(w.tokens) for w in parts], dtype=np.int32),
            tokens=np.array([t for w in parts for t in w.tokens], dtype=np.int32),
            logprobs=np.array([x for w in parts for x in w.logprobs], dtype=np.float32),
            versions=np.array([v for w in parts for v in w.versions], dtype=np.int32),
            ends=ends,
            stats=stats,
            silent_s=silent_s,
            failure=failure,
        )
        return self._unacknowledged


def to_spans(versions: list[int]) -> list[VersionSpan]:
    """Per-token versions as spans."""
    spans: list[VersionSpan] = []
    start = 0
    for i, version in enumerate(versions):
        if i + 1 == len(versions) or versions[i + 1] != version:
            spans.append(VersionSpan(version, start, i + 1))
            start = i + 1
    return spans
