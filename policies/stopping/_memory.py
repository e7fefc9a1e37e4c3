"""Figures that a stopping policy remembers of each trajectory, aligned with the observation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.observation import Bools, Floats, Ints, TrajectoryTable


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass
class Memory:
    """Columns of exactly the trajectories of the last observation."""

    columns: dict[str, Floats]
    """By name; (n,), 0 for a trajectory that was not seen before."""
    trajectory_id: Ints = field(default_factory=_no_ints)
    tokens: Ints = field(default_factory=_no_ints)
    """Generated tokens at the last observation."""

    @classmethod
    def of(cls, *names: str) -> "Memory":
        """Nothing remembered yet."""
        return cls({name: np.zeros(0) for name in names})

    def follow(self, trajectories: TrajectoryTable) -> Ints:
        """Align with the trajectories seen now; (n,) the tokens each has written since it was seen
        last, 0 where that is not known.  What is then written to `columns` is remembered."""
        ids, tokens = trajectories.trajectory_id, trajectories.generated_tokens
        at, known = self.rows(ids)
        before = self.tokens[at[known]]
        wrote = np.zeros(len(ids), dtype=np.int64)
        wrote[known] = np.maximum(tokens[known] - before, 0)
        for name, old in self.columns.items():
            self.columns[name] = np.zeros(len(ids))
            self.columns[name][known] = old[at[known]]
        self.trajectory_id, self.tokens = ids, tokens
        return wrote

    def rows(self, ids: Ints) -> tuple[Ints, Bools]:
        """(m,) row of each id, and whether it is remembered at all."""
        if not len(self.trajectory_id):
            return np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.bool_)
        last = len(self.trajectory_id) - 1
        at = np.minimum(np.searchsorted(self.trajectory_id, ids), last)
        return at, self.trajectory_id[at] == ids

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "columns": {name: column.tolist() for name, column in self.columns.items()},
            "trajectory_id": self.trajectory_id.tolist(),
            "tokens": self.tokens.tolist(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Memory":
        """The inverse of `state_dict`."""
        return cls(
            {name: np.array(column, dtype=np.float64) for name, column in state["columns"].items()},
            np.array(state["trajectory_id"], dtype=np.int64),
            np.array(state["tokens"], dtype=np.int64),
        )
