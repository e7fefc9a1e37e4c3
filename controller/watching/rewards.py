"""Which groups taught something: those whose rewards are not all equal.

A group counts once it is closed, each of its answers has its reward, and there are two or more.
"""

from dataclasses import dataclass, field
from math import inf

MAX_OPEN = 65_536
"""Groups and answers that wait for rewards, beyond which the oldest are given up: a trainer that
never rewards must not fill the memory."""


@dataclass(slots=True)
class _Open:
    answered: list[int] = field(default_factory=list)
    """Trajectories with an answer."""
    rewarded: int = 0
    low: float = inf
    high: float = -inf
    closed: bool = False


class RewardBook:
    """Follows rewards to the groups they belong to."""

    def __init__(self) -> None:
        self.degenerate = 0
        """Groups so far whose rewards were all equal."""
        self.informative = 0
        """The others."""
        self._groups: dict[int, _Open] = {}
        self._group_of: dict[int, int] = {}

    @property
    def degenerate_share(self) -> float | None:
        """0..1; None: no group was rewarded yet."""
        known = self.degenerate + self.informative
        return self.degenerate / known if known else None

    def answered(self, trajectory_id: int, group_id: int) -> None:
        """A trajectory of the group has its answer, and may earn a reward."""
        self._groups.setdefault(group_id, _Open()).answered.append(trajectory_id)
        self._group_of[trajectory_id] = group_id
        if len(self._group_of) > MAX_OPEN:
            self._give_up(self._group_of[next(iter(self._group_of))])

    def rewarded(self, trajectory_id: int, reward: float) -> None:
        """It earned that; a second reward of the same answer is ignored."""
        group_id = self._group_of.pop(trajectory_id, None)
        group = None if group_id is None else self._groups.get(group_id)
        if group_id is None or group is None:
            return
        group.rewarded += 1
        group.low, group.high = min(group.low, reward), max(group.high, reward)
        self._settle(group_id, group)

    def closed(self, group_id: int) -> None:
        """The group gets no further answer."""
        group = self._groups.get(group_id)
        if group is not None:
            group.closed = True
            self._settle(group_id, group)

    def _settle(self, group_id: int, group: _Open) -> None:
        if not group.closed or group.rewarded < len(group.answered):
            return
        del self._groups[group_id]
        if len(group.answered) >= 2:
            self.degenerate += group.low == group.high
            self.informative += group.low < group.high

    def _give_up(self, group_id: int) -> None:
        for trajectory_id in self._groups.pop(group_id).answered:
            self._group_of.pop(trajectory_id, None)
