"""Gathers looks at a fleet, one after the other, into its load."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steersman.controller.watching.load import Load
from steersman.controller.watching.observed import Observed, observed_of


@dataclass(frozen=True, slots=True)
class EngineLook:
    """One engine at one moment.  Counters are its own: they begin anew when it does."""

    running: float
    waiting: float
    kv: float
    tokens: float
    preemptions: float


ABSENT = EngineLook(0.0, 0.0, np.nan, np.nan, np.nan)
"""It did not answer."""


class Looks:
    """At engines of these names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._t_s: list[float] = []
        self._looks: list[list[EngineLook]] = []

    def __len__(self) -> int:
        return len(self._t_s)

    def add(self, t_s: float, looks: Sequence[EngineLook | None]) -> None:
        """What was seen at `t_s`, in the order of the names; None: it did not answer."""
        self._t_s.append(t_s)
        self._looks.append([ABSENT if look is None else look for look in looks])

    def observed(self, source: str) -> Observed:
        """What they tell."""

        def column(name: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
            rows = [[getattr(look, name) for look in looks] for looks in self._looks]
            return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.names))

        tokens, preempted = _grown(column("tokens")), _grown(column("preemptions"))
        load = Load(
            t_s=np.array(self._t_s),
            running=column("running"),
            waiting=column("waiting"),
            kv=column("kv"),
            tokens=tokens,
        )
        there = np.isfinite(column("tokens")).mean(axis=0)
        last = preempted[-1] if len(preempted) else np.zeros(len(self.names))
        return observed_of(source, self.names, load, last.astype(int).tolist(), there.tolist())


def _grown(
    counters: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """What counters have grown by since the first look; what an engine counted before it began
    anew, or while it was away, is kept or lost, but never taken off."""
    grown = np.zeros_like(counters)
    for engine in range(counters.shape[1]):
        seen = np.flatnonzero(np.isfinite(counters[:, engine]))
        values = counters[seen, engine]
        steps = np.maximum(np.diff(values, prepend=values[:1]), 0.0)
        grown[seen, engine] = steps
    return np.cumsum(grown, axis=0)
