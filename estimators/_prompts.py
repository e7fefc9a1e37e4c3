"""A bounded table of what each prompt's trajectories were like, sorted by prompt key."""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._lookup import find
from steersman.estimators.observation import Floats, Ints

COLUMNS = ("offset", "variance", "last_seen", "count", "squares")


@dataclass
class PromptTable:
    """Per prompt: its offset from the level and that estimate's variance, when it was last seen,
    and what its residuals' own variance rests on.  The longest unseen prompts go first."""

    capacity: int
    keys: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    columns: dict[str, Floats] = field(default_factory=lambda: {n: np.zeros(0) for n in COLUMNS})

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.keys.nbytes + sum(column.nbytes for column in self.columns.values())

    def find(self, keys: Ints) -> Ints:
        """(m,) row of each key, -1 where it is unknown."""
        return find(self.keys, keys)

    def add(self, keys: Ints, offset: Floats, variance: Floats, now: float) -> None:
        """Make a row for each of the (m,) keys that has none; of a key given twice, the first."""
        _, new = np.unique(keys, return_index=True)
        new = new[self.find(keys[new]) < 0]
        if not len(new):
            return
        order = np.argsort(np.concatenate((self.keys, keys[new])), kind="stable")
        zeros = np.zeros(len(new))
        fresh = {
            "offset": offset[new],
            "variance": variance[new],
            "last_seen": zeros + now,
            "count": zeros,
            "squares": zeros,
        }
        self.keys = np.concatenate((self.keys, keys[new]))[order]
        for name, column in self.columns.items():
            self.columns[name] = np.concatenate((column, fresh[name]))[order]

    def evict(self) -> None:
        """Forget the longest unseen beyond the capacity."""
        surplus = len(self.keys) - self.capacity
        if surplus <= 0:
            return
        keep = np.sort(np.argsort(self["last_seen"], kind="stable")[surplus:])
        self.keys = self.keys[keep]
        self.columns = {name: column[keep] for name, column in self.columns.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """As lists."""
        return {
            "keys": self.keys.tolist(),
            **{name: column.tolist() for name, column in self.columns.items()},
        }

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Replace everything."""
        self.keys = np.array(state["keys"], dtype=np.int64)
        self.columns = {name: np.array(state[name], dtype=np.float64) for name in COLUMNS}
