"""Trajectories in the middle of their lives, remembered until it is known what became of them.

A trajectory is remembered anew whenever its age has grown by `GROWTH`, or 1, 3, 7, ... of its group
have ended, so that every age is there and none too often.  Where many are alive only a part is,
chosen by a hash of id and age: whether a row is kept does not depend on how it ends.
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._lookup import find, match
from steersman.estimators.contract import State
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Bools, EndedTable, Floats, Ints, Observation

GROWTH = 0.4
"""Of log age: a dozen rows from 100 to 10,000 tokens, which overlap in most of what they tell."""
ALIVE = 1000
"""Alive trajectories up to which all are remembered: 12,000 rows of 150 bytes."""


@dataclass
class Rows:
    """n snapshots."""

    trajectory_id: Ints
    group_id: Ints
    age: Ints
    """Tokens written."""
    left: Ints
    """Tokens to the cap."""
    features: Floats
    """(n, f)"""

    def of(self, rows: Ints | Bools) -> "Rows":
        """A part of them."""
        return Rows(*(column[rows] for column in vars(self).values()))

    def __add__(self, other: "Rows") -> "Rows":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Rows(*(np.concatenate(pair) for pair in pairs))

    def __len__(self) -> int:
        return len(self.age)

    def state_dict(self) -> State:
        """As lists."""
        return {name: column.tolist() for name, column in vars(self).items()}

    @classmethod
    def from_state(cls, state: State) -> "Rows":
        """The inverse of `state_dict`."""
        names = ("trajectory_id", "group_id", "age", "left")
        integers = {name: np.array(state[name], dtype=np.int64) for name in names}
        count = len(integers["age"])
        features = np.array(state["features"], dtype=np.float64).reshape(count, -1 if count else 0)
        return cls(**integers, features=features)


@dataclass
class Snapshots:
    """Rows whose trajectory has not ended, and when each trajectory was remembered last."""

    _pending: Rows | None = field(default=None, init=False)
    _known: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)
    """Trajectories alive at the last `take`, ascending."""
    _last: Floats = field(default_factory=lambda: np.zeros(0), init=False)
    """How far they were at their last snapshot: log age, plus `GROWTH` for the news."""

    def take(self, observation: Observation, alive: Ints, features: Floats) -> None:
        """Remember those of the rows `alive` whose time has come; `features` (len(alive), f)."""
        t = observation.trajectories
        ids, age = t.trajectory_id[alive], t.generated_tokens[alive]
        over = np.bincount(t.group_row[t.phase == Phase.ENDED], minlength=len(observation.groups))
        news = np.log2(1 + over)[t.group_row[alive]]
        progress, last = np.log(np.maximum(age, 1)) + GROWTH * news, np.full(len(alive), -np.inf)
        at, here = match(self._known, ids)
        last[here] = self._last[at]
        due = progress - last >= GROWTH
        self._known, self._last = ids, np.where(due, progress, last)
        kept = np.flatnonzero(due & (uniform(ids, age) * len(ids) < ALIVE))
        fresh = Rows(
            ids[kept],
            observation.groups.group_id[t.group_row[alive[kept]]],
            age[kept],
            (t.max_new_tokens - t.generated_tokens)[alive[kept]],
            features[kept],
        )
        self._pending = fresh if self._pending is None else self._pending + fresh

    def resolve(self, ended: EndedTable) -> tuple[Rows, Ints, Bools] | None:
        """Rows of those that ended, tokens each still wrote, and whether it was cut off before its
        cap.  They are pending no longer."""
        if self._pending is None or not len(ended) or not len(self._pending):
            return None
        order = np.argsort(ended.trajectory_id)
        ids = ended.trajectory_id[order]
        at = find(ids, self._pending.trajectory_id)
        over = at >= 0
        rows, of = self._pending.of(over), order[at[over]]
        self._pending = self._pending.of(~over)
        more = ended.generated_tokens[of] - rows.age
        return rows, more, ended.censored[of] & (more < rows.left)

    def state_dict(self) -> State:
        """Everything remembered."""
        return {
            "pending": None if self._pending is None else self._pending.state_dict(),
            "known": self._known.tolist(),
            "last": self._last.tolist(),
        }

    def load_state_dict(self, state: State) -> None:
        """Replace it."""
        pending = state["pending"]
        self._pending = None if pending is None else Rows.from_state(pending)
        self._known = np.array(state["known"], dtype=np.int64)
        self._last = np.array(state["last"], dtype=np.float64)


def uniform(ids: Ints, salt: Ints | int = 0) -> Floats:
    """(m,) numbers in [0, 1) that look random and depend on the arguments alone (splitmix64)."""
    salts = np.full(len(ids), salt).astype(np.uint64)  # of scalars, overflow would warn
    z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * (salts + np.uint64(1))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
