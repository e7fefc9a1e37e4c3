"""What became of an engine's drafts, in memory that its actor reads without asking the engine.

A call of the engine waits for the iteration under way; a look at shared memory waits for nothing.
The engine's process is the only writer, except that the actor empties the slot of a request before
it starts it.  Additions are seen one by one, so a reader may be a few tokens ahead in one column;
sums are right again an iteration later.
"""

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from steersman.mechanisms.drafting.source import DraftClass

CLASSES = len(DraftClass)
SLOTS = 4096
"""Requests that are counted one by one at the same time, those that wait included; of more than
that the latest are not.  Slots are used in turn: an engine that hears of an abort late adds to one
that has not been given away again."""
NO_SLOT = -1


class DraftCounters:
    """Sums since the engine started.

    Attributes
    ----------
    drafts : (classes,) drafts that were verified, by `DraftClass`.
    drafted, accepted : (classes, max_draft_tokens) tokens at each position of those drafts that the
        verifier looked at, and that it kept.  What was not kept is wasted.
    asked : (max_draft_tokens,) times a token at that position was to be drafted, found or not.
    requests : (SLOTS, 2, max_draft_tokens) the same two of single requests.
    spent : (2,) calls of the proposer, and nanoseconds in them.
    """

    def __init__(self, buffer: mmap.mmap | bytearray, max_draft_tokens: int) -> None:
        k = max_draft_tokens
        sums = np.frombuffer(buffer, np.int64, _sums(k))
        self.drafts, self.spent, self.asked, rest = np.split(
            sums, [CLASSES, CLASSES + 2, CLASSES + 2 + k]
        )
        self.drafted, self.accepted = rest.reshape(2, CLASSES, k)
        self.requests: NDArray[np.int32] = np.frombuffer(
            buffer, np.int32, SLOTS * 2 * k, 8 * _sums(k)
        ).reshape(SLOTS, 2, k)

    @classmethod
    def private(cls, max_draft_tokens: int) -> "DraftCounters":
        """Of this process alone."""
        return cls(bytearray(_bytes(max_draft_tokens)), max_draft_tokens)

    @classmethod
    def shared(cls, descriptor: int, max_draft_tokens: int) -> "DraftCounters":
        """In an open file, which grows as needed; the mapping outlives the file's name."""
        size = _bytes(max_draft_tokens)
        if os.fstat(descriptor).st_size < size:
            os.posix_fallocate(descriptor, 0, size)
        return cls(mmap.mmap(descriptor, size), max_draft_tokens)

    def add(self, source: int, slot: int, drafted: int, accepted: int) -> None:
        """One draft of class `source` was verified, of the request in `slot` (or `NO_SLOT`)."""
        self.drafts[source] += 1
        self.drafted[source, :drafted] += 1
        self.accepted[source, :accepted] += 1
        if 0 <= slot < SLOTS:
            self.requests[slot, 0, :drafted] += 1
            self.requests[slot, 1, :accepted] += 1

    def by_class(self) -> dict[str, list[int]]:
        """Class name to drafts verified, tokens drafted, tokens accepted; of classes with any."""
        return {
            source.name.lower(): [
                int(self.drafts[source]),
                int(self.drafted[source].sum()),
                int(self.accepted[source].sum()),
            ]
            for source in DraftClass
            if self.drafts[source]
        }

    def of_request(self, slot: int) -> tuple[list[int], list[int]]:
        """Tokens drafted and accepted at each position, as far as any were; empty without any."""
        if slot == NO_SLOT:
            return [], []
        drafted, accepted = self.requests[slot]
        longest = int(np.count_nonzero(drafted))
        return drafted[:longest].tolist(), accepted[:longest].tolist()


def _sums(max_draft_tokens: int) -> int:
    return CLASSES + 2 + (1 + 2 * CLASSES) * max_draft_tokens


def _bytes(max_draft_tokens: int) -> int:
    return 8 * _sums(max_draft_tokens) + 4 * SLOTS * 2 * max_draft_tokens
