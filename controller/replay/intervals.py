"""Who ran where and when: the attempts of a replay, as columns, for timelines and sums."""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.observation import Floats, Ints

ENDINGS = (
    "finished", "truncated", "migrated", "deferred", "stopped", "lost", "restarted", "expired",
    "interrupted",
)  # fmt: skip
"""Interrupted: by a weight update that aborts what runs."""


@dataclass(frozen=True)
class Attempts:
    """k attempts that have ended."""

    trajectory: Ints
    replica: Ints
    start_s: Floats
    end_s: Floats
    first_token: Ints
    """Tokens the trajectory had at the start ..."""
    last_token: Ints
    """... and at the end."""
    ending: Ints
    """Index into `ENDINGS`."""


@dataclass
class Intervals:
    """Collects attempts as they begin and end, many at a time."""

    latest_s: float = 0.0
    """When the last attempt ended."""
    _open: dict[int, tuple[int, float, int]] = field(default_factory=dict)
    _parts: list[tuple[Ints, Ints, Floats, Floats, Ints, Ints, Ints]] = field(default_factory=list)

    def begin(self, rows: Ints, replicas: Ints, start_s: float, tokens: Ints) -> None:
        """`rows` arrive at `replicas` with so many tokens."""
        for row, replica, token in zip(
            rows.tolist(), replicas.tolist(), tokens.tolist(), strict=True
        ):
            self._open[row] = (replica, start_s, token)

    def end(self, rows: Ints, end_s: Floats, tokens: Ints, ending: str) -> None:
        """`rows` leave; what had not begun (lost on the way) is left out."""
        here = np.array([row in self._open for row in rows.tolist()], dtype=np.bool_)
        rows, end_s, tokens = rows[here], end_s[here], tokens[here]
        if not len(rows):
            return
        begun = [self._open.pop(row) for row in rows.tolist()]
        replica, start_s, first = (np.array(column) for column in zip(*begun, strict=True))
        if (start_s > end_s).any():  # on its way there, it had not begun
            came = start_s <= end_s
            rows, end_s, tokens, replica = rows[came], end_s[came], tokens[came], replica[came]
            start_s, first = start_s[came], first[came]
            if not len(rows):
                return
        self.latest_s = max(self.latest_s, float(end_s.max()))
        kind = np.full(len(rows), ENDINGS.index(ending))
        self._parts.append((rows, replica, start_s, end_s, first, tokens, kind))

    def attempts(self) -> Attempts:
        """All that have ended."""
        if not self._parts:
            none = np.zeros(0, dtype=np.int64)
            return Attempts(none, none, np.zeros(0), np.zeros(0), none, none, none)
        return Attempts(*(np.concatenate(column) for column in zip(*self._parts, strict=True)))
