"""The simulator in plain Python: what `core` and `_kernel` do, without their data structures.

Same calls as `SimulatedCore`, same floating-point operations in the same order, so that the two can
be compared exactly; nothing here is fast.  Of all replicas the one whose next event is first (then
the one of the lowest row) makes it, see `reference_replica`.
"""

import math
from collections.abc import Collection, Sequence

from steersman.mechanisms.simulated.reference_replica import Event, Replica, Trajectory
from steersman.mechanisms.simulated.spec import EventKind, ReplicaSpec, Trajectories


class ReferenceCore:
    """As `SimulatedCore`, for input that is known to be right."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.trajectories: list[Trajectory] = []
        self.replicas: list[Replica] = []

    def add(self, given: Trajectories) -> list[int]:
        """See `SimulatedCore`."""
        first, turn = len(self.trajectories), 0
        for i, turns in enumerate(given.turns.tolist()):
            rows = range(turn, turn + turns)
            columns = (given.turn_tokens, given.wait_s, given.extra_tokens)
            plan = [
                (float(columns[0][k]), float(columns[1][k]), float(columns[2][k])) for k in rows
            ]
            about = int(given.group[i]), float(given.prompt_tokens[i]), float(given.encode_s[i])
            t = Trajectory(first + i, *about, plan)
            t.generated = float(given.generated[i % len(given.generated)])
            self.trajectories.append(t)
            turn += turns
        return list(range(first, len(self.trajectories)))

    def add_replica(self, spec: ReplicaSpec) -> int:
        """See `SimulatedCore`."""
        speculation = spec.tokens_per_iteration, spec.cost_factor
        self.replicas.append(Replica(len(self.replicas), spec, self.now_s, speculation))
        return len(self.replicas) - 1

    def submit(self, rows: Sequence[int], replicas: Sequence[int], at_s: float = -math.inf) -> None:
        """See `SimulatedCore`."""
        for row, r in zip(rows, replicas, strict=True):
            t, replica = self.trajectories[row], self.replicas[r]
            replica.sync(self.now_s)
            t.replica, t.ready_s = replica, max(t.ready_s, at_s)
            (replica.away if t.ready_s > self.now_s else replica.waiting).append(t)
        for r in replicas:
            self.replicas[r].admit()

    def abort(self, rows: Sequence[int]) -> list[float]:
        """See `SimulatedCore`."""
        left = []
        for t in (self.trajectories[row] for row in rows):
            if t.replica is not None:
                left.append(t.replica)
                t.replica.sync(self.now_s)
                t.replica.withdraw(t)
        for replica in left:
            replica.admit()
        return [self.trajectories[row].generated for row in rows]

    def kill(self, r: int) -> None:
        """See `SimulatedCore`."""
        replica = self.replicas[r]
        replica.sync(self.now_s)
        replica.alive = False
        for t in [*replica.running[::-1], *replica.waiting, *replica.away]:
            replica.withdraw(t)
            replica.log.append((self.now_s, int(EventKind.LOST), t.row, r))

    def pause(self, r: int) -> None:
        """See `SimulatedCore`."""
        self.replicas[r].sync(self.now_s)
        self.replicas[r].paused = True

    def resume(self, r: int) -> None:
        """See `SimulatedCore`."""
        self.replicas[r].sync(self.now_s)
        self.replicas[r].paused = False
        self.replicas[r].admit()

    def new_weights(self, r: int) -> None:
        """See `SimulatedCore`."""
        replica = self.replicas[r]
        replica.sync(self.now_s)
        while replica.running:
            replica.preempt()
        replica.forgotten = replica.written
        replica.admit()

    def set_speculation(self, r: int, tokens_per_iteration: float, cost_factor: float) -> None:
        """See `SimulatedCore`."""
        self.replicas[r].sync(self.now_s)
        self.replicas[r].speculation = tokens_per_iteration, cost_factor

    def advance(self, until_s: float, stop_on: Collection[EventKind] = ()) -> list[Event]:
        """See `SimulatedCore`; the events as tuples."""
        if any(event[1] in stop_on for replica in self.replicas for event in replica.log):
            return self._events()
        while self.replicas:
            replica = min(self.replicas, key=lambda replica: (replica.due()[0], replica.row))
            due = replica.due()[0]
            if due > until_s or due == math.inf:
                break
            before = len(replica.log)
            replica.step()
            if any(event[1] in stop_on for event in replica.log[before:]):
                until_s = due
        if until_s == math.inf:
            until_s = max((replica.now_s for replica in self.replicas), default=self.now_s)
        self.now_s = max(until_s, self.now_s)
        return self._events()

    def _events(self) -> list[Event]:
        """What happened since the last call, in the total order."""
        events = sorted(event for replica in self.replicas for event in replica.log)
        for replica in self.replicas:
            replica.log.clear()
        return events

    def generated_tokens(self) -> list[float]:
        """See `SimulatedCore`."""
        return [self._generated(t) for t in self.trajectories]

    def _generated(self, t: Trajectory) -> float:
        if t.replica is None or t not in t.replica.running:
            return t.generated
        now = self.replica_now(t.replica.row)
        return now.written_by(t)

    def replica_now(self, r: int) -> Replica:
        """A copy of the replica, brought to now."""
        old = self.replicas[r]
        copy = Replica(**{name: getattr(old, name) for name in old.__dataclass_fields__})
        copy.sync(self.now_s)
        return copy
