"""Sticky, else fewest sessions, and re-pinned when the fleet is out of balance.

The first two parts are SkyRL's `sticky_least_loaded` (SkyRL PR 1791, vllm-router's policy of that
name): a session keeps its replica while that is healthy; a new one goes to the replica with the
fewest active sessions, ties by a hash.  A session is a trajectory that has been placed and has not
ended, so one that waits between two attempts counts on its replica.  SkyRL's rule never leaves a
healthy replica.

The third part is the gate that verl PR 6533 puts before a sticky pin, with the test of SGLang's and
vllm-router's `cache_aware` policies.  While, over the living replicas' sessions,

    max - min > imbalance_requests   and   max > imbalance_ratio * min

a trajectory that waits gives up its pin and goes to the least loaded one.  The test is made once
per tick.  A running trajectory is never moved; every waiting one is placed at once.
Correctness class: exact.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Ints, Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._fewest import fewest_first
from steersman.policies.placement._homes import Homes

STICKY, REPINNED = 1, 2
REASONS = ("fewest sessions", "returns to its replica", "leaves its replica: fleet out of balance")


@dataclass
class StickyLeastLoaded:
    """The defaults are those of SGLang's router as it is started from its command line."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    imbalance_requests: float = 64.0
    """Spread of the requests in flight above which pins are ignored; inf: never (SkyRL's rule)."""
    imbalance_ratio: float = 1.5
    """Largest over smallest load above which pins are ignored; both must be exceeded."""

    _homes: Homes = field(default_factory=Homes, init=False)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits."""
        homes = self._homes.update(observation)
        alive, names = observation.replicas.alive, observation.replicas.names
        queued, living = observation.queued, np.flatnonzero(alive)
        if not len(queued) or not len(living):
            return []
        sessions = _sessions(observation, homes)
        why = ((homes[queued] >= 0) & alive[homes[queued]]).astype(np.int64)
        if self._out_of_balance(sessions[living]):
            why *= REPINNED
        moving = queued[why != STICKY]
        pinned = homes[moving][homes[moving] >= 0]
        sessions -= np.bincount(pinned, minlength=len(names))
        salt = [zlib.crc32(name.encode()) for name in names]
        homes[moving] = fewest_first(
            sessions, living, len(moving), lambda row, n: salt[row] * (2 * n + 1) % 2**32
        )
        ids = observation.trajectories.trajectory_id[queued].tolist()
        return [
            Decision(i, Action.PLACE, "sticky_least_loaded", REASONS[w], names[r], row=row)
            for i, w, r, row in zip(
                ids, why.tolist(), homes[queued].tolist(), queued.tolist(), strict=True
            )
        ]

    def _out_of_balance(self, load: Ints) -> bool:
        highest, lowest = int(load.max()), int(load.min())
        spread = highest - lowest
        return spread > self.imbalance_requests and highest > self.imbalance_ratio * lowest

    def state_dict(self) -> dict[str, Any]:
        """Where everyone was."""
        return self._homes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace where everyone was."""
        self._homes = Homes.from_state(state)


def _sessions(observation: Observation, homes: Ints) -> Ints:
    """(r,) trajectories that were placed on each replica and have not ended."""
    open_rows = (observation.trajectories.phase != Phase.ENDED) & (homes >= 0)
    return np.bincount(homes[open_rows], minlength=len(observation.replicas)).astype(np.int64)


PLUGIN: type[PlacementPolicy] = StickyLeastLoaded
