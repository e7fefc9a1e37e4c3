"""What a fleet's load over some time tells: bubble, tails, and what could be gained at most.

The load is known at moments; between two of them it is as at the first.  An *episode* lasts while
anything is in flight anywhere; its *tail* begins when the last time four fifths of its peak are
gone.  The *bubble* is the share of the engines' time without work, of the time in episodes.

What could be gained at most: the same tokens, had every engine always written them as fast as at
its best.  No placement of the same requests on the same engines is faster than that; how near one
can come depends on the lengths.
"""

from dataclasses import dataclass

import numpy as np

from steersman.controller.watching.figures import TAIL_FROM
from steersman.estimators.observation import Floats

BEST_S = 4.0
"""An engine's best is its mean over about so much work: less shows how its reports are spaced."""
BEST_SHARE = 0.1
"""But at most this share of its work."""


@dataclass(frozen=True)
class Load:
    """Of e engines at n moments."""

    t_s: Floats
    """(n,) rising."""
    running: Floats
    """(n, e) requests in the engine's batch."""
    waiting: Floats
    """(n, e) requests in its queue."""
    kv: Floats
    """(n, e) share of its KV cache in use; NaN: not known."""
    tokens: Floats
    """(n, e) written so far; never falls."""

    def __len__(self) -> int:
        return len(self.t_s)


@dataclass(frozen=True)
class Episodes:
    """What `Load` tells."""

    seen_s: float
    busy_s: float
    """In episodes."""
    idle: Floats
    """(e,) share of the busy time in which each engine had nothing to do."""
    tails_s: list[float]
    """One per episode that was seen to its tail."""
    tokens: Floats
    """(e,) written while it was looked at."""
    best_per_s: Floats
    """(e,) tokens per second at its best."""

    @property
    def bubble(self) -> float:
        """Share of the engines' busy time."""
        return float(self.idle.mean()) if len(self.idle) else 0.0

    @property
    def tail_share(self) -> float:
        """Of the busy time."""
        return sum(self.tails_s) / self.busy_s if self.busy_s else 0.0

    @property
    def fastest_s(self) -> float | None:
        """Seconds that the tokens had taken at everybody's best; None: nothing was written."""
        best = float(self.best_per_s.sum())
        return float(self.tokens.sum()) / best if best > 0 else None

    @property
    def gain_at_most(self) -> float | None:
        """Share of the busy time that could have been saved."""
        if self.fastest_s is None or not self.busy_s:
            return None
        return max(1.0 - self.fastest_s / self.busy_s, 0.0)


def episodes_of(load: Load) -> Episodes:
    """Read it."""
    engines = load.running.shape[1]
    if len(load) < 2:
        nothing = np.zeros(engines)
        return Episodes(0.0, 0.0, nothing, [], nothing, nothing)
    step_s, there = np.diff(load.t_s), (load.running + load.waiting)[:-1]
    everywhere = there.sum(axis=1)
    busy = everywhere > 0
    busy_s = float(step_s[busy].sum())
    idle_s = (step_s[busy, None] * (there[busy] == 0)).sum(axis=0)
    return Episodes(
        seen_s=float(load.t_s[-1] - load.t_s[0]),
        busy_s=busy_s,
        idle=idle_s / busy_s if busy_s else np.zeros(engines),
        tails_s=_tails_s(step_s, everywhere),
        tokens=load.tokens[-1] - load.tokens[0],
        best_per_s=_best_per_s(load),
    )


def _tails_s(step_s: Floats, everywhere: Floats) -> list[float]:
    """Of each episode: from when it last had more than a fifth of its peak to its end."""
    busy = np.concatenate(([False], everywhere > 0, [False]))
    begins = np.flatnonzero(busy[1:] & ~busy[:-1])
    ends = np.flatnonzero(busy[:-1] & ~busy[1:])
    tails = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        there = everywhere[begin:end]
        full = np.flatnonzero(there > there.max() * (100 - TAIL_FROM) / 100)
        tail_s = float(step_s[begin + int(full[-1]) + 1 : end].sum())
        if tail_s > 0:
            tails.append(tail_s)
    return tails


def _best_per_s(load: Load) -> Floats:
    """Most tokens per second of work over about `BEST_S`, by engine."""
    working = (load.running + load.waiting)[:-1] > 0
    work_s = np.cumsum(np.diff(load.t_s)[:, None] * working, axis=0)
    best = [
        _best(np.concatenate(([0.0], work_s[:, i])), load.tokens[:, i])
        for i in range(load.tokens.shape[1])
    ]
    return np.array(best)


def _best(work_s: Floats, tokens: Floats) -> float:
    """Of one engine, whose clock stands still while it has nothing to do."""
    if work_s[-1] <= 0:
        return 0.0
    span_s = min(BEST_S, BEST_SHARE * float(work_s[-1]))
    last = np.searchsorted(work_s, work_s + span_s)
    first = np.flatnonzero(last < len(work_s))
    last = last[first]
    rates = (tokens[last] - tokens[first]) / (work_s[last] - work_s[first])
    return float(rates.max())
