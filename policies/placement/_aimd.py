"""Windows of concurrency per replica that grow by addition and shrink by a factor (AIMD)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.observation import Bools, Floats, Ints, Observation
from steersman.policies.contract import Range


@dataclass
class AimdRule:
    """When a window grows, when it shrinks, and by how much: options of policies with windows."""

    initial: float = 16.0
    """Window of a replica at first sight; the paper leaves it open."""
    increase: float = 2.0
    """Trajectories added per interval; the paper leaves it open."""
    decrease: float = 0.5
    """Factor of a cut: TCP's; the paper leaves it open."""
    kv_low: float = 0.2
    """KV usage below which a window grows: the best of the paper's sensitivity study."""
    kv_high: float = 0.5
    """KV usage above which a low hit share means thrashing: likewise; at 0.8 the paper saw four to
    five times the latency.  Its engines hold agents between two tool calls in the other half."""
    hit_low: float = 0.5
    """Share of prompt tokens found cached below which a full cache counts as thrashing; the paper
    leaves it open.  0: only preemptions count."""
    interval_s: float = 2.0
    """Seconds between two adjustments; the paper leaves it open."""


WINDOW_RANGES = {
    "initial": Range(1, 256, log=True),
    "increase": Range(0.5, 16, log=True),
    "decrease": Range(0.25, 0.95),
    "kv_low": Range(0.1, 0.95),
    "kv_high": Range(0.3, 0.99),
    "hit_low": Range(0.0, 1.0),
    "interval_s": Range(0.5, 30.0, log=True),
}
"""Where those options are worth a search."""


@dataclass
class Windows:
    """The trajectories each replica may hold at once, remembered by its name."""

    size: dict[str, float] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)
    """As last reported."""
    adjusted_s: float | None = None

    def update(self, observation: Observation, rule: AimdRule) -> Floats:
        """(r,) windows now, at least 1; adjusted if `interval_s` have passed since the last time.

        A window shrinks from what its replica holds, and not again before the replica has come
        down to it: running work is not interrupted, so until then the signals tell of the past.
        It grows only where it binds, or it would run away from what it is to bound.
        """
        r, now_s = observation.replicas, observation.now_s
        size = np.array([self.size.get(name, rule.initial) for name in r.names])
        if self.adjusted_s is None or now_s - self.adjusted_s >= rule.interval_s:
            seen = dict(zip(r.names, r.preemptions.tolist(), strict=True))
            preempted = np.array([n > self.preemptions.get(name, n) for name, n in seen.items()])
            if self.adjusted_s is not None:
                size = _adjusted(observation, size, preempted, rule)
            self.preemptions = seen
            self.adjusted_s = now_s
        self.size = dict(zip(r.names, size.tolist(), strict=True))
        return size

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "size": dict(self.size),
            "preemptions": dict(self.preemptions),
            "adjusted_s": self.adjusted_s,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Windows":
        """The inverse of `state_dict`."""
        return cls(dict(state["size"]), dict(state["preemptions"]), state["adjusted_s"])


def _adjusted(observation: Observation, size: Floats, preempted: Bools, rule: AimdRule) -> Floats:
    r, held = observation.replicas, observation.inflight()
    fresh = r.metrics_age_s <= rule.interval_s
    missing = (r.kv_cache_usage > rule.kv_high) & (r.prefix_hit_share < rule.hit_low)
    shrink = fresh & (preempted | missing) & (held <= size)
    grow = fresh & ~preempted & (r.kv_cache_usage < rule.kv_low) & (held >= np.floor(size))
    less = np.maximum(np.minimum(size, held) * rule.decrease, 1.0)
    return np.where(shrink, less, np.where(grow, size + rule.increase, size))


def room_of(observation: Observation, windows: Floats) -> Ints:
    """(r,) trajectories that each living replica may still take."""
    left = np.floor(windows).astype(np.int64) - observation.inflight()
    return np.where(observation.replicas.alive, np.maximum(left, 0), 0)
