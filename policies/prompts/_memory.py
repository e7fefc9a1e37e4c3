"""What a prompt policy remembers of each prompt: columns of numbers by prompt key."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Bools, Floats, Ints
from steersman.policies.prompting import FinishedGroups

FORGOTTEN_AT_ONCE = 8
"""If the memory is full, an eighth of it goes, so that it is not rebuilt for every prompt."""


@dataclass
class PromptMemory:
    """`width` numbers of each prompt; those not updated for longest go if there are too many."""

    width: int
    max_prompts: int
    key: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(n,) rising."""
    written: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(n,) count of the update that wrote the row last."""
    values: Floats = field(init=False)
    """(width, n)"""
    updates: int = 0

    def __post_init__(self) -> None:
        if self.max_prompts < 1:
            raise InvalidInputError(f"max_prompts is {self.max_prompts}; at least 1")
        self.values = np.zeros((self.width, 0))

    def __len__(self) -> int:
        return len(self.key)

    def read(self, key: Ints, unknown: tuple[float, ...]) -> Floats:
        """(width, m) numbers of the prompts; `unknown` for those not remembered."""
        row, held = self._find(key)
        answer = np.repeat(np.asarray(unknown, dtype=np.float64)[:, None], len(key), axis=1)
        answer[:, held] = self.values[:, row[held]]
        return answer

    def write(self, key: Ints, values: Floats) -> None:
        """Replace the numbers of the prompts, each named once: (m,) and (width, m)."""
        self.updates += 1
        row, held = self._find(key)
        self.values[:, row[held]] = values[:, held]
        self.written[row[held]] = self.updates
        new = np.flatnonzero(~held)
        if not len(new):
            return
        new = new[np.argsort(key[new])]
        at = np.searchsorted(self.key, key[new])
        self.key = np.insert(self.key, at, key[new])
        self.written = np.insert(self.written, at, self.updates)
        self.values = np.insert(self.values, at, values[:, new], axis=1)
        if len(self) > self.max_prompts:
            self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Everything, as lists."""
        return {
            "key": self.key.tolist(),
            "written": self.written.tolist(),
            "values": self.values.tolist(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace everything."""
        self.key = np.asarray(state["key"], dtype=np.int64)
        self.written = np.asarray(state["written"], dtype=np.int64)
        values = np.asarray(state["values"], dtype=np.float64)
        self.values = values.reshape(self.width, len(self.key))
        self.updates = int(state["updates"])

    def _find(self, key: Ints) -> tuple[Ints, Bools]:
        """Rows, and whether the prompt is there; a row of one that is not means nothing."""
        if not len(self):
            return np.zeros(len(key), dtype=np.int64), np.zeros(len(key), dtype=np.bool_)
        row = np.minimum(np.searchsorted(self.key, key), len(self) - 1)
        return row, self.key[row] == key

    def _forget(self) -> None:
        kept = self.max_prompts - self.max_prompts // FORGOTTEN_AT_ONCE
        newest = np.sort(np.argsort(self.written, kind="stable")[-kept:])
        self.key, self.written = self.key[newest], self.written[newest]
        self.values = self.values[:, newest]


def one_of_each(key: Ints, counts: Bools | None = None) -> list[Ints]:
    """Rows in parts: within a part every key stands once, and its rows stay in order.

    Rows that do not count, if that is told, are in none.
    """
    order = np.argsort(key, kind="stable")
    order = order if counts is None else order[counts[order]]
    ordered = key[order]
    start = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(order) else order
    nth = np.arange(len(order)) - np.repeat(start, np.diff(np.r_[start, len(order)]))
    return [np.sort(order[nth == n]) for n in range(int(nth.max(initial=-1)) + 1)]


def passes(groups: FinishedGroups, low: float, high: float) -> Floats:
    """(m,) samples that passed, of those whose reward is known (`FinishedGroups.rewarded`).

    Rewards are scaled so that `low` fails and `high` passes, and clipped: one between is a part of
    a pass.
    """
    known = np.isfinite(groups.reward)
    scaled = np.where(known, np.clip((groups.reward - low) / (high - low), 0.0, 1.0), 0.0)
    return np.bincount(groups.group_row, weights=scaled, minlength=len(groups)).astype(np.float64)


def check_rewards(low: float, high: float) -> None:
    """Raise unless `low` is below `high`."""
    if not low < high:
        raise InvalidInputError(f"reward_low {low} must be below reward_high {high}")
