"""AIMD concurrency: a window of trajectories per replica that follows its KV cache (CONCUR).

Source: CONCUR (arXiv 2601.22705), which sees the KV cache as a link that congests.  Engines admit
whatever fits now; contexts grow, and in the middle of a batch they evict each other ("middle-phase
thrashing").  So each replica has a window W of trajectories it may hold, and once per interval,
with U the share of its KV cache in use and H the share of prompt tokens found in its prefix cache,

    U < kv_low                         W <- W + increase      (while the window binds)
    U > kv_high and H < hit_low        W <- decrease * W
    otherwise                          W stays

What waits is placed where there is room: first what already carries tokens, each to the replica
with the fewest in flight; the rest waits here.  Nothing that runs is moved or cut: a window below
what its replica holds only stops admission (the paper pauses an agent between two steps).

What differs from the paper, and why.  (1) A preemption since the last interval shrinks the window
like a miss: it is how vLLM tells of a running context that lost its place, and where trajectories
have one turn the hit share tells nothing of it.  (2) The hit share that engines report is a mean
since their start, not of the interval, so late changes of it are seen weakly.  (3) A window shrinks
from what its replica holds, and once per drain (`_aimd`); without that, intervals shorter than a
trajectory drive it to 1.  The two KV thresholds are the paper's as a
summary of it tells them; step sizes, interval, hit threshold and starting window we do not know
from it: they are options.

It is wrong where the KV cache does not bind: there it only costs slots while the windows grow.
Correctness class: exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Decision
from steersman.policies.placement._admission import fill, placements, resumed_first
from steersman.policies.placement._aimd import AimdRule, Windows, room_of


@dataclass
class AimdConcurrency:
    """All thresholds are shares, 0..1."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

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

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "initial": Range(1, 256, log=True),
        "increase": Range(0.5, 16, log=True),
        "decrease": Range(0.25, 0.95),
        "kv_low": Range(0.1, 0.95),
        "kv_high": Range(0.3, 0.99),
        "hit_low": Range(0.0, 1.0),
        "interval_s": Range(0.5, 30.0, log=True),
    }

    _windows: Windows = field(default_factory=Windows, init=False)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Adjust the windows, then admit what they have room for."""
        rule = AimdRule(
            self.initial,
            self.increase,
            self.decrease,
            self.kv_low,
            self.kv_high,
            self.hit_low,
            self.interval_s,
        )
        room = room_of(observation, self._windows.update(observation, rule))
        rows = resumed_first(observation)
        targets = fill(observation, room, len(rows))
        reason = "the window of its replica has room"
        return placements(observation, rows, targets, "aimd_concurrency", reason)

    def state_dict(self) -> dict[str, Any]:
        """The windows."""
        return self._windows.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the windows."""
        self._windows = Windows.from_state(state)


PLUGIN: type[PlacementPolicy] = AimdConcurrency
