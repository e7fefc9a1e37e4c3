"""Regret, from the seconds of each step: how much it is, how it grows, how soon a change is met.

The regret of an entry against another after t steps is the sum of its seconds minus the other's, on
the same trajectories.  The best *fixed* entry is the one with the smallest sum over the whole run,
known only in hindsight (the comparator of online learning; Cesa-Bianchi and Lugosi, "Prediction,
Learning, and Games", 2006).  A policy that learns which one it is has a regret that grows like t^a
with a below 1; one that keeps making the same mistake has a = 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from steersman.estimators.observation import Floats

WITHIN = 1.05
"""A change is met when the seconds are at most so many times the best fixed entry's ..."""
WINDOW = 3
"""... in the median over so many steps: one step is chance."""


@dataclass(frozen=True)
class Regret:
    """Of one entry against another; means over seeds."""

    against: str
    cumulative_s: tuple[float, ...]
    """(steps,)"""
    growth: float | None
    """Slope of its logarithm over that of the steps in the second half; None: not positive
    there."""
    thirds_s: tuple[float, ...]
    """Seconds per step in the first, second and last third."""
    thirds_share: tuple[float, ...]
    """The same over the other's seconds per step."""

    @property
    def total_s(self) -> float:
        """Of the whole run."""
        return self.cumulative_s[-1]


@dataclass(frozen=True)
class Change:
    """A regime, from its first step on."""

    step: int
    regime: str
    best: str
    """The fixed entry with the smallest sum in it."""
    regret_s: float
    """Against that one, until the regime ends."""
    steps_until_near: tuple[int | None, ...]
    """(seeds,) before a window that is near the best one's; None: none in the regime is."""


def regret(own: Floats, other: Floats, against: str) -> Regret:
    """Both (seeds, steps) seconds, of 3 steps or more."""
    each = (own - other).mean(axis=0)
    cumulative = np.cumsum(each)
    thirds = [float(part.mean()) for part in np.array_split(each, 3)]
    base = [float(part.mean()) for part in np.array_split(other.mean(axis=0), 3)]
    return Regret(
        against=against,
        cumulative_s=tuple(cumulative.tolist()),
        growth=growth(cumulative),
        thirds_s=tuple(thirds),
        thirds_share=tuple(a / b for a, b in zip(thirds, base, strict=True)),
    )


def growth(cumulative: Floats) -> float | None:
    """Exponent of (steps,), from its second half."""
    step = np.arange(1, len(cumulative) + 1)
    half = step > len(step) / 2
    if half.sum() < 2 or (cumulative[half] <= 0).any():
        return None
    x, y = np.log(step[half]), np.log(cumulative[half])
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def best_of(seconds: Mapping[str, Floats], fixed: Sequence[str]) -> str:
    """The fixed entry with the smallest sum; `seconds` are (seeds, steps)."""
    return min(fixed, key=lambda name: float(seconds[name].sum()))


def changes(
    seconds: Mapping[str, Floats],
    judged: str,
    fixed: Sequence[str],
    starts: Sequence[tuple[int, str]],
) -> list[Change]:
    """How the judged entry met each regime, the first included."""
    steps = seconds[judged].shape[1]
    ends = [first for first, _ in starts[1:]] + [steps]
    found = []
    for (first, regime), end in zip(starts, ends, strict=True):
        part = {name: own[:, first:end] for name, own in seconds.items()}
        best = best_of(part, fixed)
        found.append(
            Change(
                step=first,
                regime=regime,
                best=best,
                regret_s=float((part[judged] - part[best]).mean(axis=0).sum()),
                steps_until_near=tuple(
                    steps_until_near(own, other)
                    for own, other in zip(part[judged], part[best], strict=True)
                ),
            )
        )
    return found


def steps_until_near(own: Floats, other: Floats) -> int | None:
    """Steps before the first window in which `own` (steps,) is near `other` (steps,)."""
    if len(own) < WINDOW:
        return None
    median = np.median(sliding_window_view(own / other, WINDOW), axis=1)
    near = np.flatnonzero(median <= WITHIN)
    return int(near[0]) if len(near) else None
