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
from steersman.policies.placement._aimd import WINDOW_RANGES, AimdRule, Windows, room_of


@dataclass
class AimdConcurrency(AimdRule):
    """All thresholds are shares, 0..1."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT
    TUNABLE: ClassVar[Mapping[str, Range]] = WINDOW_RANGES

    _windows: Windows = field(default_factory=Windows, init=False)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Adjust the windows, then admit what they have room for."""
        room = room_of(observation, self._windows.update(observation, self))
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
