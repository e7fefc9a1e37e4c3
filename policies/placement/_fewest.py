"""Placements one after another, each to the replica with the least on it at that moment."""

import heapq
from collections.abc import Callable

from steersman.estimators.observation import Ints


def fewest_first(
    count: Ints, rows: Ints, wanted: int, tie: Callable[[int, int], float]
) -> list[int]:
    """Rows for `wanted` placements among `rows`, which have `count[rows]` now.

    `tie(row, count)` orders replicas of one count.  O(wanted * log(len(rows))).
    """
    heap = [(int(count[row]), tie(row, int(count[row])), row) for row in rows.tolist()]
    heapq.heapify(heap)
    chosen: list[int] = []
    for _ in range(wanted):
        n, _, row = heap[0]
        heapq.heapreplace(heap, (n + 1, tie(row, n + 1), row))
        chosen.append(row)
    return chosen
