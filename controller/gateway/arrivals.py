"""Where a request goes that comes alone: at once, before the next decision.

A decision of the controller takes some milliseconds, which a lone request need not wait for: it
goes to the engine where the fewest are in flight (its session's engine first, whose cache knows the
conversation), as the trainer's default would have it, and the controller moves it later if that
pays.  A burst is left to the controller, which places it as a whole; so is whatever comes while
something waits, or while no engine has room.
"""

from collections import OrderedDict

from steersman.controller.ledger import Ledger
from steersman.controller.loop import COALESCE_S
from steersman.estimators.lifecycle import Phase
from steersman.mechanisms.execution import Execution
from steersman.mechanisms.fleet import Fleet
from steersman.policies.decision import Action, Decision

BURST = 64
"""Placed at once within one coalescing window of the loop; more of them at once are a step's
beginning, which is worth a decision.  Where there is room for all, an order of theirs matters
little, and engines whose answers end together bring a dozen at a time."""
FULL = 0.9
"""KV usage beyond which an engine has no room: preemption is near."""
MAX_SESSIONS = 65_536
"""Remembered homes; the oldest are forgotten."""
SLACK = 4
"""More in flight than on the emptiest engine, up to which a session stays at home: beyond that the
wait costs more than the prefill that the cache saves."""


class Arrivals:
    """Remembers sessions and the present burst."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self._fleet, self._ledger = fleet, ledger
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._window_s = float("-inf")
        self._placed = self._turn = 0

    def decide(self, executions: list[Execution], session: str, now_s: float) -> list[Decision]:
        """Placements for those that need not wait for the controller; none: let it decide."""
        if self._ledger.waiting > len(executions):
            return []
        if now_s - self._window_s >= COALESCE_S:
            self._window_s, self._placed = now_s, 0
        if self._placed + len(executions) > BURST:
            return []
        load = self._loads()
        decisions = []
        for execution in executions:
            if execution.phase is not Phase.QUEUED or not load:
                return []
            least = min(load.values())
            home = self._homes.get(session, "") if session else ""
            if home in load and load[home] <= least + SLACK:
                chosen, reason = home, "its session's engine"
            else:
                chosen, reason = (
                    self._next([n for n, k in load.items() if k == least]),
                    "fewest in flight",
                )
            load[chosen] += 1
            decisions.append(
                Decision(execution.spec.trajectory_id, Action.PLACE, "arrival", reason, chosen)
            )
        self._placed += len(executions)
        if session and decisions:
            self.settle(session, decisions[-1].replica)
        return decisions

    def settle(self, session: str, replica: str) -> None:
        """The session was last answered there."""
        self._homes[session] = replica
        self._homes.move_to_end(session)
        if len(self._homes) > MAX_SESSIONS:
            self._homes.popitem(last=False)

    def forget(self, session: str) -> None:
        """The session is over: nothing returns to its engine."""
        self._homes.pop(session, None)

    def _loads(self) -> dict[str, int]:
        """In flight on each engine that has room."""
        fleet, inflight = self._fleet, self._ledger.inflight
        return {
            info.name: inflight[info.name]
            for info in fleet.replicas
            if fleet.is_alive(info.name)
            and inflight[info.name] < info.max_num_seqs
            and fleet.stats(info.name).kv_cache_usage < FULL
        }

    def _next(self, names: list[str]) -> str:
        """One of them, in turn."""
        self._turn += 1
        return names[self._turn % len(names)]
