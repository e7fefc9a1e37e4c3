"""A data loader's order over the rows of a pool: every prompt has one turn per epoch.

`offer` lists all rows that may be chosen: those that still have their turn in this epoch first, in
the epoch's order, then the others in the next one's.  `pass_over` says how far the trainer went:
who stood before the last one taken has had its turn as well.

It counts turns, so that withheld prompts, a pool that changes and an end of an epoch amid a batch
neither lose a turn nor give one twice.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.observation import Bools, Ints


class Turns:
    """`shuffle`: each epoch in an order of its own; else in the pool's."""

    def __init__(self, seed: int, shuffle: bool) -> None:
        self._seed, self._shuffle = seed, shuffle
        self._had: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._orders: dict[int, NDArray[np.int32]] = {}
        """Of the present epochs, as long as the pool stays."""

    def carry_over(self, before: Ints) -> None:
        """The pool has changed: the rows that its prompts had, -1: new."""
        epoch = int(self._had.min()) if len(self._had) else 0
        had = np.full(len(before), epoch, dtype=np.int32)
        old = before >= 0
        had[old] = self._had[before[old]]
        self._had, self._orders = had, {}

    def offer(self, allowed: Bools | None) -> Ints:
        """Rows in the order of their turns; None: all are allowed."""
        if not len(self._had):
            return np.zeros(0, dtype=np.int64)
        epoch = int(self._had.min())
        now, later = self._order(epoch), self._order(epoch + 1)
        self._orders = {epoch: now, epoch + 1: later}
        listed = np.concatenate((now[self._had[now] == epoch], later[self._had[later] > epoch]))
        if allowed is not None:
            listed = listed[allowed[listed]]
        return np.asarray(listed.astype(np.int64))

    def pass_over(self, offered: Ints, taken: Ints) -> None:
        """These places of what was offered were taken."""
        if len(taken):
            self._had[offered[: int(taken.max()) + 1]] += 1

    def state_dict(self) -> dict[str, Any]:
        """Turns of each row."""
        return {"had": self._had.copy()}

    def load_state_dict(self, state: dict[str, Any], before: Ints) -> None:
        """Replace them; `before`: rows of the state, -1: new."""
        self._had = np.asarray(state["had"], dtype=np.int32)
        self.carry_over(before)

    def _order(self, epoch: int) -> NDArray[np.int32]:
        if epoch in self._orders:
            return self._orders[epoch]
        if not self._shuffle:
            return np.arange(len(self._had), dtype=np.int32)
        rng = np.random.default_rng((self._seed, epoch))
        return rng.permutation(len(self._had)).astype(np.int32)
