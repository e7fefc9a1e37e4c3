"""One fleet, several sessions that take turns: each sees, and commands, only its own.

Between its turns a session's controller goes on ticking.  It must not learn from what the others
did on the engines, nor tell these what to draft while another one is measured.  So out of turn its
commands to replicas are dropped and the figures stand still, and in turn all counters are shown
without what was added meanwhile.
"""

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from msgspec.structs import replace

from steersman.mechanisms.fleet import Fleet, ReplicaStats

COUNTERS = (
    "preemptions",
    "prefix_queries",
    "prefix_hits",
    "prefill_tokens",
    "iterations",
    "busy_s",
    "sequences_run",
)
LISTS = ("asked_at", "drafted_at", "accepted_at")


@dataclass
class Turns:
    """Implements `Fleet` for one session."""

    fleet: Fleet
    in_turn: bool = False
    _left: dict[str, ReplicaStats] = field(default_factory=dict)
    """As shown when the turn before ended, but for drafts, of which there are none any more."""
    _others: dict[str, ReplicaStats] = field(default_factory=dict)
    """What the others have counted, by replica."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)

    def begin(self) -> None:
        """It is this session's turn."""
        for info in self.fleet.replicas:
            shown = self._left.get(info.name, ReplicaStats())
            self._others[info.name] = less(self.fleet.stats(info.name), shown)
        self.in_turn = True

    def end(self) -> None:
        """It is another one's."""
        self._left = {
            info.name: replace(self.stats(info.name), draft_tokens=0)
            for info in self.fleet.replicas
        }
        self.in_turn = False

    def stats(self, replica: str) -> ReplicaStats:
        """The last report, with what this session has caused."""
        if not self.in_turn:
            return self._left.get(replica, ReplicaStats())
        return less(self.fleet.stats(replica), self._others.get(replica, ReplicaStats()))

    def draft(self, replica: str, draft_tokens: int) -> None:
        """Unless it is another one's turn."""
        if self.in_turn:
            self.fleet.draft(replica, draft_tokens)


def less(stats: ReplicaStats, other: ReplicaStats) -> ReplicaStats:
    """`stats`, its counters without those of `other`."""
    numbers = {name: getattr(stats, name) - getattr(other, name) for name in COUNTERS}
    lists = {
        name: [
            a - b for a, b in zip_longest(getattr(stats, name), getattr(other, name), fillvalue=0)
        ]
        for name in LISTS
    }
    sources = {
        name: [a - b for a, b in zip_longest(three, other.draft_classes.get(name, []), fillvalue=0)]
        for name, three in stats.draft_classes.items()
    }
    return replace(stats, **numbers, **lists, draft_classes=sources)
