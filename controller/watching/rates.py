"""How fast something grows that is only known as a counter, read now and then."""

from collections import deque

WINDOW_S = 5.0
"""Rates are over at least one reading and about so long: shorter flickers, longer lags."""


class Rate:
    """The growth of one counter.  A counter that goes back begins anew (its engine restarted)."""

    def __init__(self) -> None:
        self._read: deque[tuple[float, float]] = deque()

    def note(self, t_s: float, value: float) -> None:
        """It was `value` at `t_s`.  Readings of the same instant count once."""
        if self._read and t_s <= self._read[-1][0]:
            return
        if self._read and value < self._read[-1][1]:
            self._read.clear()
        self._read.append((t_s, value))
        while len(self._read) > 2 and t_s - self._read[1][0] >= WINDOW_S:
            self._read.popleft()

    @property
    def per_s(self) -> float | None:
        """Growth per second over the window; None: it was not read twice."""
        if len(self._read) < 2:
            return None
        (from_s, before), (to_s, after) = self._read[0], self._read[-1]
        return (after - before) / (to_s - from_s)
