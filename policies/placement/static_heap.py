"""Static heap: whole groups, each assigned once to the engine with the least, never re-balanced.

OpenRLHF's dispatch (`SamplesGenerator`, 0.11.2).  When a batch is submitted, the engines'
unfinished requests are read once into a min-heap; then, prompt by prompt, the least loaded engine
takes all samples of the prompt and its count goes up by their number.  All siblings share one
engine's prefix cache.  Nothing is re-balanced when engines drain at different times, and a count
knows nothing of lengths or of an engine's speed.

Ties go by the engine's name (there: by its index).  A sample that waits again returns to its
group's engine; if that is gone, what waits of the group is assigned anew, which OpenRLHF does not
do (it fails).  Correctness class: exact.
"""

import heapq
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Decision, place

NAME = "static_heap"


@dataclass
class StaticHeap:
    """No options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    _engine_of: dict[int, str] = field(default_factory=dict, init=False)
    """By group id, of the groups that are open."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits."""
        groups, replicas = observation.groups, observation.replicas
        queued = observation.queued
        waiting = np.bincount(observation.trajectories.group_row[queued], minlength=len(groups))
        row_of = {name: row for row, name in enumerate(replicas.names) if replicas.alive[row]}
        heap = [
            (count, name, row_of[name])
            for count, name in zip(observation.inflight().tolist(), replicas.names, strict=True)
            if name in row_of
        ]
        if not heap or not len(queued):
            return []
        heapq.heapify(heap)
        engine_of, assigned = self._engine_of, {}
        for group in np.flatnonzero(waiting).tolist():
            group_id = int(groups.group_id[group])
            if engine_of.get(group_id) not in row_of:
                count, name, row = heap[0]
                engine_of[group_id] = name
                heapq.heapreplace(heap, (count + int(waiting[group]), name, row))
            assigned[group] = row_of[engine_of[group_id]]
        open_groups = set(groups.group_id.tolist())
        self._engine_of = {g: name for g, name in engine_of.items() if g in open_groups}
        group_row = observation.trajectories.group_row[queued].tolist()
        return [
            place(observation, row, assigned[group], NAME, "its group's engine")
            for row, group in zip(queued.tolist(), group_row, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Which engine each open group is on."""
        return {
            "group_id": list(self._engine_of),
            "engine": list(self._engine_of.values()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace which engine each group is on."""
        self._engine_of = dict(zip(state["group_id"], state["engine"], strict=True))


PLUGIN: type[PlacementPolicy] = StaticHeap
