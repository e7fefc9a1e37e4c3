"""Imbalance gate: where the prompt is cached, unless the fleet is out of balance.

SGLang's `cache_aware` router with the thresholds that slime starts it with.  While, over the
living replicas' trajectories in flight,

    max - min > imbalance_requests   and   max > imbalance_ratio * min

a waiting trajectory goes to the replica with the fewest; otherwise to the one that holds the
longest prefix of it.  The test is made again before every placement.  Here the longest prefix is
the replica it was last on, if it carries tokens; else any on which a sibling is or was last (the
fewest in flight of them); a prompt that is cached nowhere goes to the fewest.  Seer's rule
(arXiv 2511.14617) is the same with a spread of 32 and no ratio: `imbalance_ratio=1`.

How it differs from `sticky_least_loaded`, whose gate is the same test: there a pin belongs to one
trajectory, is tested once per tick and with the router's own thresholds; here the siblings of a
prompt attract each other, so the gate decides at every step's beginning and not only when a
trajectory comes back.

Not here: the router's prefix tree.  It also matches prefixes across prompts (a common system
prompt), forgets by its own clock, and sends what matches too little to the smallest tree rather
than to the fewest in flight.  A running trajectory is never moved; every waiting one is placed at
once.  Correctness class: exact.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._homes import Homes

FEWEST, GATED, OWN, SIBLING = range(4)
REASONS = (
    "its prompt is cached nowhere: fewest in flight",
    "the fleet is out of balance: fewest in flight",
    "its own context is cached there",
    "a sibling's prompt is cached there",
)


@dataclass
class ImbalanceGate:
    """The defaults are slime's, which lie below the router's own (64 and 1.5)."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    imbalance_requests: float = 10.0
    """Spread of the trajectories in flight above which caches are ignored; inf: never."""
    imbalance_ratio: float = 1.2
    """Largest over smallest count above which caches are ignored; both must be exceeded."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "imbalance_requests": Range(0, 128, integer=True),
        "imbalance_ratio": Range(1.0, 3.0),
    }

    _homes: Homes = field(default_factory=Homes, init=False)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits."""
        homes = self._homes.update(observation)
        t, queued, names = observation.trajectories, observation.queued, observation.replicas.names
        alive = observation.replicas.alive
        if not len(queued) or not alive.any():
            return []
        load, holders = _Counts(observation), _holders(observation, homes)
        known = (homes[queued] >= 0) & alive[homes[queued]] & (t.generated_tokens[queued] > 0)
        own = np.where(known, homes[queued], -1)
        decisions: list[Decision] = []
        columns = (queued, t.trajectory_id[queued], t.group_row[queued], own)
        for row, i, group, home in zip(*(column.tolist() for column in columns), strict=True):
            there = holders.setdefault(group, set())
            target, why = self._choose(load, home, there)
            load.add(target)
            there.add(target)
            homes[row] = target
            decisions.append(
                Decision(i, Action.PLACE, "imbalance_gate", REASONS[why], names[target], row=row)
            )
        return decisions

    def _choose(self, load: "_Counts", home: int, holders: set[int]) -> tuple[int, int]:
        fewest = load.fewest()
        low, high = load.count[fewest], load.highest
        if high - low > self.imbalance_requests and high > self.imbalance_ratio * low:
            return fewest, GATED
        if home >= 0:
            return home, OWN
        if holders:
            return min(holders, key=load.key), SIBLING
        return fewest, FEWEST

    def state_dict(self) -> dict[str, Any]:
        """Where everyone was."""
        return self._homes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace where everyone was."""
        self._homes = Homes.from_state(state)


class _Counts:
    """In flight per living replica while placements are added; the fewest in O(log r)."""

    def __init__(self, observation: Observation) -> None:
        self.names = observation.replicas.names
        self.count: list[int] = observation.inflight().tolist()
        living = np.flatnonzero(observation.replicas.alive).tolist()
        self.highest = max(self.count[row] for row in living)
        self._heap = [(*self.key(row), row) for row in living]
        heapq.heapify(self._heap)

    def key(self, row: int) -> tuple[int, str]:
        """Orders replicas, the emptiest first, ties by name."""
        return self.count[row], self.names[row]

    def add(self, row: int) -> None:
        """One more."""
        self.count[row] += 1
        self.highest = max(self.highest, self.count[row])

    def fewest(self) -> int:
        """Row of the emptiest.  Entries of the heap may be out of date: too low."""
        while True:
            count, _, row = self._heap[0]
            if count == self.count[row]:
                return int(row)
            heapq.heapreplace(self._heap, (*self.key(row), row))


def _holders(observation: Observation, homes: Ints) -> dict[int, set[int]]:
    """By group row, of groups of which some wait: living replicas that one of them is or was on."""
    t, alive = observation.trajectories, observation.replicas.alive
    waits = np.zeros(len(observation.groups), dtype=np.bool_)
    waits[t.group_row[observation.queued]] = True
    rows = np.flatnonzero(waits[t.group_row] & (homes >= 0))
    rows = rows[alive[homes[rows]]]
    pairs = np.unique(np.stack((t.group_row[rows], homes[rows])), axis=1)
    holders: dict[int, set[int]] = {}
    for group, replica in pairs.T.tolist():
        holders.setdefault(group, set()).add(replica)
    return holders


PLUGIN: type[PlacementPolicy] = ImbalanceGate
