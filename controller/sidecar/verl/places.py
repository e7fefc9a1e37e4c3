"""Places for requests of clients that tell only when they begin and end.

A conversation stays where it was (its prefix is cached there) unless that engine has `SLACK` more
in flight than the emptiest: then waiting costs more than a prefill.  Else: the fewest in flight
among engines that have room in their KV cache, or among all if none has.
"""

from collections import Counter, OrderedDict

from steersman.controller.gateway.arrivals import FULL, SLACK
from steersman.mechanisms.leases.fleet import LeaseFleet

MAX_SESSIONS = 65_536
"""Remembered homes; the oldest are forgotten."""


class Places:
    """Requests in flight on the replicas of a fleet, beside its leases."""

    def __init__(self, fleet: LeaseFleet) -> None:
        self._fleet = fleet
        self._inflight: Counter[str] = Counter()
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._turn = 0

    def load(self, name: str) -> int:
        """In flight there, leases included."""
        return self._inflight[name] + self._fleet.leases(name)

    def take(self, session: str) -> str | None:
        """A place; None: nobody is in the pool.  An engine that rests holds the request until it
        goes on, so one is better than none."""
        names = self._fleet.present()
        open_ones = [name for name in names if self._fleet.is_alive(name)] or names
        if not open_ones:
            return None
        loads = {name: self.load(name) for name in open_ones}
        home = self._homes.get(session)
        if home not in loads or loads[home] > min(loads.values()) + SLACK:
            home = self._fewest(loads)
        self._homes[session] = home
        self._homes.move_to_end(session)
        if len(self._homes) > MAX_SESSIONS:
            self._homes.popitem(last=False)
        self._inflight[home] += 1
        return home

    def give_back(self, name: str) -> None:
        """A request there has ended; one of a server that left does not matter."""
        if self._inflight[name] > 0:
            self._inflight[name] -= 1

    def drop(self, name: str) -> None:
        """The replica left, or came back: what was counted there does not hold."""
        self._inflight.pop(name, None)

    def forget(self) -> int:
        """Let conversations go anywhere; returns how many there were."""
        count = len(self._homes)
        self._homes.clear()
        return count

    def _fewest(self, loads: dict[str, int]) -> str:
        roomy = {n: k for n, k in loads.items() if self._fleet.stats(n).kv_cache_usage < FULL}
        loads = roomy or loads
        least = min(loads.values())
        fewest = [name for name, load in loads.items() if load == least]
        self._turn += 1
        return fewest[self._turn % len(fewest)]
