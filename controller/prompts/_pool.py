"""The prompts there are, and what is known of each: 25 bytes beside the estimator's 32 to 36.

Prompts stand in the caller's order; rows are places in it.  Of each it keeps the key, where the
estimator keeps its belief, its mean length, when it was last rolled out, and whether it is withheld
from choices.  A prompt that leaves is forgotten here; the estimator remembers it a while longer.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Bools, Floats, Ints
from steersman.estimators.success import DynamicLogistic
from steersman.policies.prompting import Candidates, FinishedGroups

PromptId = str | int
MOST_SAMPLES = 64
"""That a mean length rests on: later ones count 1/65, so that it follows the policy."""
UNSEEN = -1


def key_of(prompt_id: PromptId) -> int:
    """Of a string its stable 63-bit hash (`Prompt.key`), an integer itself."""
    if isinstance(prompt_id, str):
        return int.from_bytes(blake2b(prompt_id.encode(), digest_size=8).digest()) >> 1
    try:
        return index(prompt_id)
    except TypeError:
        raise InvalidInputError(
            f"prompt id {prompt_id!r} is neither a string nor an integer"
        ) from None


def _no_rows() -> NDArray[np.int32]:
    return np.zeros(0, dtype=np.int32)


@dataclass
class PromptPool:
    """Columns by row, and the estimator."""

    estimator: DynamicLogistic
    ids: Sequence[PromptId] = ()
    """As given, not copied."""
    key: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    withheld: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    visited: NDArray[np.int32] = field(default_factory=_no_rows)
    """Step in which it was last rolled out, or came into the pool."""
    mean_tokens: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """NaN: not known."""
    _samples: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """That the mean rests on."""
    _by_key: NDArray[np.int32] = field(default_factory=_no_rows)
    """Rows in the order of their keys."""
    _believed: NDArray[np.int32] = field(default_factory=_no_rows)
    """Row of the estimator's table."""
    _moved: int = UNSEEN

    def __len__(self) -> int:
        return len(self.key)

    @property
    def nbytes(self) -> int:
        """Memory, the estimator's included; the ids are the caller's."""
        arrays = (
            self.key, self.withheld, self.visited, self.mean_tokens, self._samples, self._by_key,
            self._believed,
        )  # fmt: skip
        return sum(array.nbytes for array in arrays) + self.estimator.nbytes

    def replace(self, ids: Sequence[PromptId], step: int) -> Ints:
        """Other prompts, which could be rolled out for the first time in this step; what is known
        of those that remain is kept.  Returns the rows that they had, -1: new."""
        key = np.fromiter((key_of(each) for each in ids), np.int64, len(ids))
        by_key = np.argsort(key, kind="stable").astype(np.int32)
        _check_once(ids, key, by_key)
        before = self.find(key)
        kept, n = np.flatnonzero(before >= 0), len(key)
        old = before[kept]
        withheld, visited = np.zeros(n, np.bool_), np.full(n, step, np.int32)
        tokens, samples = np.full(n, np.nan, np.float32), np.zeros(n, np.uint8)
        withheld[kept], visited[kept] = self.withheld[old], self.visited[old]
        tokens[kept], samples[kept] = self.mean_tokens[old], self._samples[old]
        self.ids, self.key, self._by_key = ids, key, by_key
        self.withheld, self.visited = withheld, visited
        self.mean_tokens, self._samples = tokens, samples
        self._moved = UNSEEN
        return before

    def find(self, key: Ints) -> Ints:
        """(m,) rows of these keys, -1: not in the pool."""
        if not len(self):
            return np.full(len(key), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.key, key, sorter=self._by_key), len(self) - 1)
        row = self._by_key[at].astype(np.int64)
        return np.where(self.key[row] == key, row, -1)

    def row_of(self, prompt_id: PromptId) -> int:
        """Its row; raises if there is none."""
        key = key_of(prompt_id)
        # not `find`: for one key, searching a sorter costs a copy of it
        at = bisect_left(
            range(len(self)), key, key=lambda place: int(self.key[self._by_key[place]])
        )
        row = int(self._by_key[at]) if at < len(self) else -1
        if row < 0 or self.key[row] != key:
            raise InvalidInputError(
                f"unknown prompt {prompt_id!r}: it is not among the {len(self)} of the pool"
            )
        return row

    def candidates(
        self, rows: Ints | None, step: int, weight_version: int, group_size: int
    ) -> Candidates:
        """The prompts in these rows (None: all), as a policy sees them."""
        self._look_up()
        believed, key = self._believed, self.key
        tokens, visited = self.mean_tokens, self.visited
        if rows is not None:
            # `clip`, since rows are valid: half the time
            believed, key = believed.take(rows, mode="clip"), key.take(rows, mode="clip")
            tokens, visited = tokens.take(rows, mode="clip"), visited.take(rows, mode="clip")
        mean, variance = self.estimator.predict_rows(believed, weight_version)
        waited = np.subtract(np.int32(step), visited)  # 32 bits: a million at half the cost
        np.maximum(waited, 0, out=waited)
        return Candidates(key, mean, variance, tokens.astype(np.float64), group_size, waited)

    def learn(self, groups: FinishedGroups, tokens_known: bool = True) -> None:
        """Whole groups, each shown once."""
        self._learn_rewards(groups)
        if tokens_known:
            self._learn_lengths(groups)

    def state_dict(self) -> dict[str, Any]:
        """By key, so that another pool can take over what it has of it."""
        return {
            "key": self.key.copy(),
            "withheld": self.withheld.copy(),
            "visited": self.visited.copy(),
            "mean_tokens": self.mean_tokens.copy(),
            "samples": self._samples.copy(),
            "estimator": self.estimator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Ints:
        """Replace what is known; returns the rows of the state that these prompts had, -1: new."""
        key = np.asarray(state["key"], dtype=np.int64)
        found = self.find(key)
        then = np.flatnonzero(found >= 0)
        now = found[then]
        columns = {
            "withheld": self.withheld, "visited": self.visited, "mean_tokens": self.mean_tokens,
            "samples": self._samples,
        }  # fmt: skip
        for name, column in columns.items():
            column[now] = np.asarray(state[name], dtype=column.dtype)[then]
        self.estimator.load_state_dict(state["estimator"])
        self._moved = UNSEEN
        before = np.full(len(self), -1, dtype=np.int64)
        before[now] = then
        return before

    def _learn_rewards(self, groups: FinishedGroups) -> None:
        counts = groups.rewarded
        some = np.flatnonzero(counts > 0)
        if not len(some):
            return
        low, high = self.estimator.reward_low, self.estimator.reward_high
        known = np.isfinite(groups.reward)
        passed = np.clip((groups.reward[known] - low) / (high - low), 0.0, 1.0)
        passes = np.bincount(groups.group_row[known], weights=passed, minlength=len(groups))
        for version in np.unique(groups.weight_version[some]).tolist():
            own = some[groups.weight_version[some] == version]
            self.estimator.learn(groups.prompt_key[own], passes[own], counts[own], version)
        if self._moved == self.estimator.rows_moved:
            key = np.unique(groups.prompt_key[some])
            row = self.find(key)
            here = row >= 0
            self._believed[row[here]] = self.estimator.rows_of(key[here])

    def _learn_lengths(self, groups: FinishedGroups) -> None:
        row, member = np.unique(self.find(groups.prompt_key), return_inverse=True)
        own = member[groups.group_row]
        total: Floats = np.bincount(own, weights=groups.tokens, minlength=len(row)).astype(float)
        count = np.bincount(own, minlength=len(row))
        here = np.flatnonzero((row >= 0) & (count > 0))
        row, total, count = row[here], total[here], count[here]
        had = self._samples[row].astype(np.float64)
        before = np.where(had > 0, self.mean_tokens[row], 0.0)
        self.mean_tokens[row] = (had * before + total) / (had + count)
        self._samples[row] = np.minimum(had + count, MOST_SAMPLES)

    def _look_up(self) -> None:
        """Where the estimator keeps each prompt, anew if all have moved."""
        if self._moved != self.estimator.rows_moved:
            self._believed = np.empty(len(self), dtype=np.int32)
            self._believed[self._by_key] = self.estimator.rows_of(self.key[self._by_key])
            self._moved = self.estimator.rows_moved


def _check_once(ids: Sequence[PromptId], key: Ints, by_key: NDArray[np.int32]) -> None:
    rising = key[by_key]
    twice = np.flatnonzero(rising[1:] == rising[:-1])
    if not len(twice):
        return
    first, second = (int(by_key[twice[0] + k]) for k in (0, 1))
    if ids[first] == ids[second]:
        raise InvalidInputError(
            f"prompt {ids[first]!r} stands twice in the pool, at {first} and {second}"
        )
    raise InvalidInputError(
        f"prompts {ids[first]!r} and {ids[second]!r} have the same key {key[first]}; rename one"
    )
