"""Which replica each trajectory was last on: the memory of the sticky policies."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.observation import NO_ROW, Ints, Observation


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass
class Homes:
    """Last known replica of exactly the trajectories of the last observation."""

    names: tuple[str, ...] = ()
    trajectory_id: Ints = field(default_factory=_no_ints)
    row: Ints = field(default_factory=_no_ints)
    """Row in `names`, or `NO_ROW`."""

    def update(self, observation: Observation) -> Ints:
        """(n,) home of every trajectory now; kept, so that what is written to it is remembered."""
        self._rename(observation.replicas.names)
        ids = observation.trajectories.trajectory_id
        here = observation.destination_row
        known = np.full(len(ids), NO_ROW, dtype=np.int64)
        if len(self.trajectory_id):
            at = np.minimum(np.searchsorted(self.trajectory_id, ids), len(self.row) - 1)
            known = np.where(self.trajectory_id[at] == ids, self.row[at], NO_ROW)
        self.trajectory_id, self.row = ids, np.where(here >= 0, here, known)
        return self.row

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "names": list(self.names),
            "trajectory_id": self.trajectory_id.tolist(),
            "row": self.row.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Homes":
        """The inverse of `state_dict`."""
        return cls(
            tuple(state["names"]),
            np.array(state["trajectory_id"], dtype=np.int64),
            np.array(state["row"], dtype=np.int64),
        )

    def _rename(self, names: tuple[str, ...]) -> None:
        if names == self.names:
            return
        new = {name: row for row, name in enumerate(names)}
        table = np.array([*(new.get(name, NO_ROW) for name in self.names), NO_ROW], dtype=np.int64)
        self.names, self.row = names, table[self.row]
