"""A trainer's data loader: every prompt once per epoch, each epoch in a new order."""

import numpy as np

from steersman.estimators.observation import Ints


class DataLoader:
    """`offer` shows what comes next; `pass_over` says how far the trainer went."""

    def __init__(self, keys: Ints, seed: int) -> None:
        self._keys, self._seed, self._epoch = keys, seed, 0
        self._coming = keys[:0]
        self._shown = keys[:0]
        """Places in `_coming` of what was offered last."""

    def offer(self, count: int, but_not: Ints) -> Ints:
        """The next `count` prompts, each once and none of `but_not`; fewer if there are no more."""
        count = min(count, len(np.setdiff1d(self._keys, but_not)))
        while True:
            _, first = np.unique(self._coming, return_index=True)
            first = np.sort(first[~np.isin(self._coming[first], but_not)])
            if len(first) >= count:
                self._shown = first[:count]
                return self._coming[self._shown]
            rng = np.random.default_rng((self._seed, self._epoch))
            self._coming = np.concatenate((self._coming, rng.permutation(self._keys)))
            self._epoch += 1

    def pass_over(self, rows: Ints) -> None:
        """These of the offered ones were taken; those before them had their turn as well, those
        after them come again."""
        if len(rows):
            self._coming = np.delete(self._coming, self._shown[: int(rows.max()) + 1])
            self._shown = self._shown[:0]
