"""Columns of all trajectories and groups that a replay has admitted; rows are never reused."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.controller.replay.intervals import ENDINGS
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, NO_VERSION, Bools, Floats, Ints

INT_COLUMNS = {
    "group": 0, "index": 0, "phase": int(Phase.QUEUED), "replica": NO_ROW, "target": NO_ROW,
    "prompt_tokens": 0, "images": 0, "length": 0, "cap": 0, "generated": 0, "seen": 0, "moves": 0,
    "deferred": 0, "restarts": 0, "turns": 0, "version": NO_VERSION, "ending": NO_ROW,
    "loops_from": 0,
}  # fmt: skip
"""Column and what a new row has there.  `seen`: tokens at the last observation; `index`: place in
the group; `ending`: how it ended, as in `ENDINGS`."""
FLOAT_COLUMNS = {
    "queued_s": np.nan, "placed_s": np.nan, "moved_s": -np.inf, "arrives_s": np.inf,
    "reward": np.nan, "regret": np.nan,
}  # fmt: skip
GROUP_INTS = ("key", "step", "size", "ended", "rewarded")
GROUP_FLOATS = {"reward_sum": 0.0, "reward_low": np.inf, "reward_high": -np.inf}

ANSWERS = tuple(ENDINGS.index(name) for name in ("finished", "truncated", "stopped"))
REPLACED = tuple(ENDINGS.index(name) for name in ("restarted", "expired"))
"""Endings whose trajectory is no answer: a fresh one has its slot."""


class Books:
    """The columns."""

    def __init__(self) -> None:
        self.ints = {name: np.zeros(0, dtype=np.int64) for name in INT_COLUMNS}
        self.floats = {name: np.zeros(0) for name in FLOAT_COLUMNS}
        self.group_ints = {name: np.zeros(0, dtype=np.int64) for name in GROUP_INTS}
        self.group_floats = {name: np.zeros(0) for name in GROUP_FLOATS}

    def __len__(self) -> int:
        return len(self.ints["group"])

    @property
    def groups(self) -> int:
        """How many there are."""
        return len(self.group_ints["key"])

    @property
    def is_open(self) -> Bools:
        """(g,) groups that lack an answer."""
        return np.asarray(self.group_ints["ended"] < self.group_ints["size"])

    def add_groups(self, key: Ints, step: int) -> Ints:
        """Groups without trajectories; returns their rows."""
        first, n = self.groups, len(key)
        new = {"key": key, "step": np.full(n, step)}
        _extend(self.group_ints, n, dict.fromkeys(GROUP_INTS, 0), new)
        _extend(self.group_floats, n, GROUP_FLOATS, {})
        return np.arange(first, first + n)

    def add(self, n: int, new: Mapping[str, NDArray[Any]]) -> Ints:
        """n trajectories that wait; returns their rows."""
        first = len(self)
        _extend(self.ints, n, INT_COLUMNS, new)
        _extend(self.floats, n, FLOAT_COLUMNS, new)
        return np.arange(first, first + n)

    def grow_groups(self, group: Ints) -> Ints:
        """One slot more in each of `group` (n,), which may repeat; returns the slots' indexes."""
        order = np.argsort(group, kind="stable")
        rank = np.empty(len(group), dtype=np.int64)
        rank[order] = np.arange(len(group)) - np.searchsorted(group[order], group[order])
        index = self.group_ints["size"][group] + rank
        np.add.at(self.group_ints["size"], group, 1)
        return index

    def end(self, rows: Ints, ending: str) -> None:
        """They are over; answers count in their groups."""
        i, f = self.ints, self.floats
        i["phase"][rows], i["ending"][rows] = Phase.ENDED, ENDINGS.index(ending)
        i["replica"][rows] = i["target"][rows] = NO_ROW
        f["placed_s"][rows] = np.nan
        if ENDINGS.index(ending) in REPLACED:
            return
        np.add.at(self.group_ints["ended"], i["group"][rows], 1)
        known = rows[np.isfinite(f["reward"][rows])]
        group, reward = i["group"][known], f["reward"][known]
        np.add.at(self.group_ints["rewarded"], group, 1)
        np.add.at(self.group_floats["reward_sum"], group, reward)
        np.minimum.at(self.group_floats["reward_low"], group, reward)
        np.maximum.at(self.group_floats["reward_high"], group, reward)

    def queue(self, rows: Ints, now_s: float) -> None:
        """They wait for a placement."""
        i, f = self.ints, self.floats
        i["phase"][rows] = Phase.QUEUED
        i["replica"][rows] = i["target"][rows] = NO_ROW
        f["queued_s"][rows] = now_s
        f["placed_s"][rows] = np.nan

    def wrote(self, rows: Ints, tokens: Floats) -> None:
        """Whole tokens that they have written; the last one comes with the end."""
        whole = np.floor(tokens).astype(np.int64)
        self.ints["generated"][rows] = np.minimum(whole, self.ints["length"][rows] - 1)


def _extend(
    columns: dict[str, NDArray[Any]],
    n: int,
    defaults: Mapping[str, float],
    new: Mapping[str, NDArray[Any]],
) -> None:
    for name, old in columns.items():
        more = new.get(name)
        if more is None:
            more = np.full(n, defaults[name], dtype=old.dtype)
        columns[name] = np.concatenate((old, more)).astype(old.dtype, copy=False)
