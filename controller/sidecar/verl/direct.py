"""Where trajectories go without a router: to the engine where this worker has the fewest.

That is the rule of verl's own balancer, except that each worker counts only its own.  Turns of one
conversation stay together.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

MAX_SESSIONS = 10_000
"""Remembered homes, as verl's balancer has them."""


class Direct:
    """Of one worker."""

    def __init__(self) -> None:
        self._inflight: Counter[str] = Counter()
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._lost: set[str] = set()
        self._turn = 0

    def take(self, session: str, servers: Mapping[str, Any]) -> str | None:
        """A server for the next attempt, to be given back with `leave`; None: there is none."""
        alive = [name for name in servers if name not in self._lost]
        if not alive:
            return None
        home = self._homes.get(session)
        if home not in alive:
            least = min(self._inflight[name] for name in alive)
            fewest = [name for name in alive if self._inflight[name] == least]
            self._turn += 1
            home = fewest[self._turn % len(fewest)]
            self._homes[session] = home
            if len(self._homes) > MAX_SESSIONS:
                self._homes.popitem(last=False)
        self._inflight[home] += 1
        return home

    def leave(self, server: str) -> None:
        """An attempt there has ended."""
        self._inflight[server] -= 1

    def lose(self, server: str) -> None:
        """It is gone for good."""
        self._lost.add(server)

    def forget(self, session: str) -> None:
        """Its next attempt may go anywhere."""
        self._homes.pop(session, None)
