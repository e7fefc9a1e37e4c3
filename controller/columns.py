"""Growing numpy columns with stable row numbers: the ledger's memory, ready to be observed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST_CAPACITY = 256


class Columns:
    """Named columns of equal length; rows are handed out and given back.

    Handing out and giving back are O(1) amortised; `order` sorts the used rows by `key`, which is
    what makes an observation independent of the history of its rows.
    """

    def __init__(self, key: str, floats: tuple[str, ...], ints: tuple[str, ...]) -> None:
        self._key = key
        self._columns: dict[str, NDArray[Any]] = {
            **{name: np.zeros(FIRST_CAPACITY, dtype=np.float64) for name in floats},
            **{name: np.zeros(FIRST_CAPACITY, dtype=np.int64) for name in (key, *ints)},
        }
        self._used = np.zeros(FIRST_CAPACITY, dtype=np.bool_)
        self._free = list(range(FIRST_CAPACITY - 1, -1, -1))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def take(self, **values: float) -> int:
        """A new row holding `values`; every column must be given."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        for name, column in self._columns.items():
            column[row] = values[name]
        self._used[row] = True
        return row

    def give_back(self, row: int) -> None:
        """The row is not needed any more."""
        self._used[row] = False
        self._free.append(row)

    def order(self) -> NDArray[np.int64]:
        """The used rows, by rising key."""
        rows = np.flatnonzero(self._used)
        return rows[np.argsort(self._columns[self._key][rows], kind="stable")]

    def _grow(self) -> None:
        old = len(self._used)
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate([column, np.zeros_like(column)])
        self._used = np.concatenate([self._used, np.zeros(old, dtype=np.bool_)])
        self._free.extend(range(2 * old - 1, old - 1, -1))
