"""What is known of each replica, as columns whose rows follow the replicas' names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.observation import Floats


@dataclass
class ReplicaColumns:
    """Columns of numbers; the first axis is the replica."""

    empty: Mapping[str, Floats]
    """What a new replica's row holds, by column."""
    names: tuple[str, ...] = ()
    columns: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.columns = {name: np.zeros((0, *row.shape)) for name, row in self.empty.items()}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def __setitem__(self, name: str, column: Floats) -> None:
        self.columns[name] = column

    def align(self, names: tuple[str, ...]) -> bool:
        """Bring the rows into the order of `names`; says whether anything changed."""
        if names == self.names:
            return False
        old = {name: row for row, name in enumerate(self.names)}
        rows = np.array([old.get(name, -1) for name in names], dtype=np.int64)
        new, known = np.flatnonzero(rows >= 0), rows[rows >= 0]
        for name, row in self.empty.items():
            column = np.tile(row, (len(names),) + (1,) * row.ndim)
            column[new] = self.columns[name][known]
            self.columns[name] = column
        self.names = names
        return True

    def state_dict(self) -> dict[str, Any]:
        """Names and columns as lists (JSON can hold them: NaN as None)."""
        columns = {
            name: {
                "shape": list(column.shape),
                "values": [None if x != x else x for x in column.ravel().tolist()],
            }
            for name, column in self.columns.items()
        }
        return {"names": list(self.names), "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace names and columns."""
        self.names = tuple(state["names"])
        for name in self.empty:
            stored = state["columns"][name]
            values = np.array(stored["values"], dtype=np.float64)
            self.columns[name] = values.reshape(stored["shape"])
