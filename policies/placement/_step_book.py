"""What each group of a step turned out to be: what policies learn from, from step to step.

A trajectory that was cut off counts with the tokens it had.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from steersman.estimators.observation import Bools, Floats, Ints, Observation

UNASSIGNED = -1
"""Pool of a group that is not routed yet."""
UNKNOWN = -1.0
"""Expectation of a group whose prompt was never seen."""
MOST_GROUPS = 65_536
"""Groups of one step, beyond which the older half of the complete ones is forgotten: a stream may
be one step that never ends."""


def find(known: Ints, keys: Ints) -> Ints:
    """(m,) row of each key in the ascending `known`, -1 where it is not there."""
    if not len(known):
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray(np.where(known[at] == keys, at, -1))


def _ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _floats() -> Floats:
    return np.zeros(0)


@dataclass
class Groups:
    """g groups, ordered by id; the arrays are its own."""

    group_id: Ints = field(default_factory=_ints)
    prompt_key: Ints = field(default_factory=_ints)
    pool: Ints = field(default_factory=_ints)
    """Where its trajectories go, or `UNASSIGNED`."""
    expected: Floats = field(default_factory=_floats)
    """What was expected of it when it was routed, or `UNKNOWN`."""
    ended: Ints = field(default_factory=_ints)
    """Trajectories."""
    longest: Ints = field(default_factory=_ints)
    """Tokens of the longest trajectory that ended."""
    tokens: Floats = field(default_factory=_floats)
    """Of all that ended."""
    context: Floats = field(default_factory=_floats)
    """Sum over those tokens of the context each was written at."""
    end_s: Floats = field(default_factory=_floats)
    """When its last trajectory ended, seconds into the step, to the resolution of a tick."""

    def __len__(self) -> int:
        return len(self.group_id)

    def at(self, rows: Ints | Bools) -> "Groups":
        """Some of them."""
        return Groups(**{name: column[rows] for name, column in vars(self).items()})

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {name: column.tolist() for name, column in vars(self).items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Groups":
        """The inverse of `state_dict`."""
        empty = cls()
        return cls(
            **{
                f.name: np.array(state[f.name], dtype=getattr(empty, f.name).dtype)
                for f in fields(cls)
            }
        )


@dataclass
class StepBook:
    """The groups of the present step, and when it began."""

    step: int = -1
    started_s: float = 0.0
    now_s: float = 0.0
    """Of the last observation."""
    groups: Groups = field(default_factory=Groups)

    def follow(self, observation: Observation) -> Groups | None:
        """Take in an observation; the complete groups of the step before, if a new one begins.

        What ended after the last look at a step is dated to that look: the pause between two steps
        is not the groups' time.
        """
        closed = None
        if observation.trainer.step != self.step:
            self._fold(observation, self.now_s - self.started_s)
            going_on = np.isin(self.groups.group_id, observation.groups.group_id)
            closed = self.groups.at(~going_on & (self.groups.ended > 0))
            self.groups = self.groups.at(going_on)
            self.step, self.started_s = observation.trainer.step, observation.now_s
            self._add(observation)
        else:
            self._add(observation)
            self._fold(observation, observation.now_s - self.started_s)
        self.now_s = observation.now_s
        return closed

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**vars(self), "groups": self.groups.state_dict()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "StepBook":
        """The inverse of `state_dict`."""
        return cls(**{**state, "groups": Groups.from_state(state["groups"])})

    def _add(self, observation: Observation) -> None:
        """Groups that were not known."""
        g, old = observation.groups, self.groups
        fresh = np.flatnonzero(find(old.group_id, g.group_id) < 0)
        if not len(fresh):
            return
        n = len(fresh)
        new = Groups(
            group_id=g.group_id[fresh],
            prompt_key=g.prompt_key[fresh],
            pool=np.full(n, UNASSIGNED),
            expected=np.full(n, UNKNOWN),
            ended=np.zeros(n, dtype=np.int64),
            longest=np.zeros(n, dtype=np.int64),
            tokens=np.zeros(n),
            context=np.zeros(n),
            end_s=np.zeros(n),
        )
        order = np.argsort(np.concatenate((old.group_id, new.group_id)))
        self.groups = Groups(
            **{
                name: np.concatenate((column, getattr(new, name)))[order]
                for name, column in vars(old).items()
            }
        )
        if len(self.groups) > MOST_GROUPS:
            complete = np.flatnonzero(find(g.group_id, self.groups.group_id) < 0)
            keep = np.ones(len(self.groups), dtype=np.bool_)
            keep[complete[: len(complete) // 2]] = False
            self.groups = self.groups.at(keep)

    def _fold(self, observation: Observation, at_s: float) -> None:
        """Count what ended."""
        e, g = observation.ended, self.groups
        at = find(g.group_id, e.group_id)
        rows, at = np.flatnonzero(at >= 0), at[at >= 0]
        tokens = e.generated_tokens[rows].astype(np.float64)
        np.add.at(g.ended, at, 1)
        np.maximum.at(g.longest, at, e.generated_tokens[rows])
        np.add.at(g.tokens, at, tokens)
        np.add.at(g.context, at, tokens * (e.prompt_tokens[rows] + tokens / 2))
        g.end_s[at] = at_s


@dataclass
class PromptMemory:
    """A number for each prompt, from its last visit; never forgotten, 16 bytes a prompt."""

    key: Ints = field(default_factory=_ints)
    """Ascending."""
    value: Floats = field(default_factory=_floats)

    def put(self, keys: Ints, values: Floats) -> None:
        """Remember; of a prompt that comes twice, the last."""
        key = np.concatenate((self.key, keys))[::-1]
        value = np.concatenate((self.value, values))[::-1]
        self.key, last = np.unique(key, return_index=True)
        self.value = value[last]

    def get(self, keys: Ints) -> Floats:
        """(m,) of each, `UNKNOWN` where there is none."""
        at = find(self.key, keys)
        return np.asarray(np.where(at >= 0, np.append(self.value, UNKNOWN)[at], UNKNOWN))

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"key": self.key.tolist(), "value": self.value.tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "PromptMemory":
        """The inverse of `state_dict`."""
        return cls(np.array(state["key"], dtype=np.int64), np.array(state["value"], dtype=float))
