"""Round robin: one living replica after the other, whatever is on it.

The order of the replicas is that of their names, the order of the trajectories that of their ids;
the turn is remembered by name, so replicas may come and go.  Every waiting trajectory is placed at
once.  Nothing is ever moved.  AReaL's router works like this.  Correctness class: exact.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action, Decision


@dataclass
class RoundRobin:
    """No options."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    _last: str = field(default="", init=False)
    """Name of the replica that was served last."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits."""
        replicas, queued = observation.replicas, observation.queued.tolist()
        names = sorted(replicas.names[row] for row in np.flatnonzero(replicas.alive))
        if not names or not queued:
            return []
        start = sum(name <= self._last for name in names)
        ids = observation.trajectories.trajectory_id[queued].tolist()
        decisions = [
            Decision(
                trajectory_id,
                Action.PLACE,
                "round_robin",
                "its turn",
                names[(start + turn) % len(names)],
                row=row,
            )
            for turn, (row, trajectory_id) in enumerate(zip(queued, ids, strict=True))
        ]
        self._last = decisions[-1].replica
        return decisions

    def state_dict(self) -> dict[str, Any]:
        """Whose turn it was."""
        return {"last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace whose turn it was."""
        self._last = str(state["last"])


PLUGIN: type[PlacementPolicy] = RoundRobin
