"""A bounded table of floats by key, fast to look up and to grow while it is large.

Rows are appended and never move.  A sorted index finds them; new keys go into a second, short
index, which is merged into the first when it has grown to `RECENT`: adding 128 keys to a million
then takes well under a millisecond most times, and some ten once in 32 times.  When the table is
full the eighth of it that was unseen longest goes at once (a tenth of a second at a million).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steersman.estimators._lookup import match
from steersman.estimators.observation import Floats, Ints

RECENT = 4096
"""Keys of the short index: inserting into it and searching it stay below 20 microseconds."""
GROWTH = 1.2
"""Room is multiplied by this when it is used up; a sixth of it lies idle at most."""
Rows = NDArray[np.int32]
Singles = NDArray[np.float32]
"""Half of the memory; what is believed of a prompt is never certain to 1e-7."""


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _no_rows() -> Rows:
    return np.zeros(0, dtype=np.int32)


@dataclass
class _Index:
    """Sorted keys and the row of each."""

    keys: Ints = field(default_factory=_no_ints)
    rows: Rows = field(default_factory=_no_rows)

    def find(self, keys: Ints) -> Ints:
        """(m,) row of each key, -1 where it is unknown."""
        at, here = match(self.keys, keys)
        rows = np.full(len(keys), -1, dtype=np.int64)
        rows[here] = self.rows[at]
        return rows

    def insert(self, keys: Ints, rows: Rows) -> None:
        """Sorted keys that it does not hold yet."""
        at = np.searchsorted(self.keys, keys)
        self.keys = np.insert(self.keys, at, keys)
        self.rows = np.insert(self.rows, at, rows)


@dataclass
class KeyedStates:
    """`columns[:, row]` is the state of the key whose row `find` gives."""

    width: int
    """Floats per key; the last column is when it was last seen."""
    capacity: int
    columns: Singles = field(init=False)
    """(width, room); rows from `len(self)` on are not in use."""
    replaced: int = field(default=0, init=False)
    """Times that all rows moved: when it was full, or loaded."""
    _main: _Index = field(default_factory=_Index, init=False)
    _recent: _Index = field(default_factory=_Index, init=False)

    def __post_init__(self) -> None:
        self.columns = np.zeros((self.width, 0), dtype=np.float32)

    def __len__(self) -> int:
        return len(self._main.keys) + len(self._recent.keys)

    def find(self, keys: Ints) -> Ints:
        """(m,) row of each key, -1 where it is unknown."""
        rows = self._main.find(keys)
        if len(self._recent.keys):
            missing = np.flatnonzero(rows < 0)
            rows[missing] = self._recent.find(keys[missing])
        return rows

    def insert(self, keys: Ints, values: Floats) -> None:
        """Sorted keys that are unknown yet, with their (width, m) values."""
        first, end = len(self), len(self) + len(keys)
        if end > self.columns.shape[1]:
            room = max(int(self.columns.shape[1] * GROWTH), end)
            grown = np.zeros((self.width, room), dtype=np.float32)
            grown[:, :first] = self.columns[:, :first]
            self.columns = grown
        self.columns[:, first:end] = values
        self._recent.insert(keys, np.arange(first, end, dtype=np.int32))
        if len(self._recent.keys) > RECENT:
            self._merge()

    def evict(self) -> None:
        """Where there are more than `capacity`, leave seven eighths of it."""
        if len(self) <= self.capacity:
            return
        self._merge()
        surplus = len(self) - (self.capacity - self.capacity // 8)
        last_seen = self.columns[-1, self._main.rows]
        kept = np.ones(len(self), dtype=np.bool_)
        kept[np.argpartition(last_seen, surplus - 1)[:surplus]] = False
        self.load(self._main.keys[kept], self.columns[:, self._main.rows[kept]])

    @property
    def nbytes(self) -> int:
        """Memory."""
        indices = (self._main, self._recent)
        return self.columns.nbytes + sum(i.keys.nbytes + i.rows.nbytes for i in indices)

    def dump(self) -> tuple[Ints, Singles]:
        """Sorted keys and their (width, n) values."""
        self._merge()
        return self._main.keys, self.columns[:, self._main.rows]

    def load(self, keys: Ints, values: Floats | Singles) -> None:
        """Hold these sorted keys and nothing else."""
        self.columns = values.astype(np.float32)
        self._main, self._recent = _Index(keys, np.arange(len(keys), dtype=np.int32)), _Index()
        self.replaced += 1

    def _merge(self) -> None:
        self._main.insert(self._recent.keys, self._recent.rows)
        self._recent = _Index()
