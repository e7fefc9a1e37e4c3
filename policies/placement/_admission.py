"""Placing what waits into limited room, in a given order."""

import heapq

import numpy as np

from steersman.estimators.observation import Ints, Observation
from steersman.policies.decision import Action, Decision


def fill(observation: Observation, room: Ints, wanted: int) -> list[int]:
    """Replica rows for at most `wanted` placements, one after another.

    Each goes to the living replica with the fewest in flight among those with room left, ties by
    name; `room` is (r,) and not changed.  O(wanted * log(r)).
    """
    names, left = observation.replicas.names, room.tolist()
    able = np.flatnonzero(observation.replicas.alive & (room > 0))
    count = observation.inflight()[able].tolist()
    heap = [(n, names[row], row) for n, row in zip(count, able.tolist(), strict=True)]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < wanted:
        n, name, row = heap[0]
        chosen.append(row)
        left[row] -= 1
        if left[row] > 0:
            heapq.heapreplace(heap, (n + 1, name, row))
        else:
            heapq.heappop(heap)
    return chosen


def placements(
    observation: Observation, rows: Ints, targets: list[int], policy: str, reason: str
) -> list[Decision]:
    """Place the first `len(targets)` of `rows` there, all for one reason."""
    names, rows = observation.replicas.names, rows[: len(targets)]
    ids = observation.trajectories.trajectory_id[rows].tolist()
    return [
        Decision(i, Action.PLACE, policy, reason, names[target], row=row)
        for i, row, target in zip(ids, rows.tolist(), targets, strict=True)
    ]


def resumed_first(observation: Observation) -> Ints:
    """Waiting rows: those that already carry tokens, then the others; within both, who waits
    longest first."""
    t, queued = observation.trajectories, observation.queued
    fresh = t.generated_tokens[queued] == 0
    return np.asarray(queued[np.lexsort((queued, t.queued_s[queued], fresh))])
