"""What a replay asks for: steps of groups, and how much each trajectory will write.

Lengths are given.  That makes a replay honest about scheduling, and only about that: how long a
sample becomes does not depend on where and when it is written, as long as the weights are the same.
A length that is only a lower bound (an abort, a loss) is not taken for an end: every imputation
draws it anew from the lengths beyond it, of its own prompt if there are enough, else of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from steersman.controller.replay.turns import Turns, turns_of
from steersman.controller.runs.table import RunTable
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Bools, Floats, Ints

OWN_LENGTHS = 5
"""Longer samples of its own prompt from which a censored length is drawn."""
NO_CAP = 1 << 20
"""Token cap where the log tells none and nothing was truncated."""
NEVER, NOT_TOLD = -1, -2
"""In `loops_from`: it never only repeats itself; nobody looked."""
COLUMNS = ("prompt_tokens", "length", "max_new_tokens", "censored", "reward", "images")
SHARED = ("regret", "loops_from")
"""Columns of trajectories, and those of them that may hold one value for all."""


@dataclass(frozen=True)
class Asked:
    """One step: n trajectories of g groups."""

    step: int
    prompt_key: Ints
    """(g,)"""
    group_row: Ints
    """(n,)"""
    prompt_tokens: Ints
    length: Ints
    """(n,) tokens each writes, its cap respected."""
    max_new_tokens: Ints
    censored: Bools
    """(n,) `length` is only a lower bound."""
    reward: Floats
    """(n,) NaN: not known."""
    images: Ints
    """(n,) in the prompt."""
    turns: Turns
    regret: Floats = field(default_factory=lambda: np.full(1, np.nan))
    """(n,), or (1,) of all: mean regret of its tokens (`TrajectoryTable`); NaN: not known."""
    loops_from: Ints = field(default_factory=lambda: np.full(1, NOT_TOLD))
    """(n,), or (1,) of all: token from which on it only repeats itself, `NEVER` or `NOT_TOLD`."""

    @classmethod
    def plain(
        cls,
        step: int,
        prompt_key: Ints,
        group_row: Ints,
        length: Ints,
        max_new_tokens: Ints | int,
        prompt_tokens: Ints | int,
        **more: Any,
    ) -> "Asked":
        """Of known lengths, one turn, no images and unknown rewards, unless `more` says it."""
        n = len(length)
        usual = {
            "censored": np.zeros(n, dtype=np.bool_),
            "reward": np.full(n, np.nan),
            "images": np.zeros(n, dtype=np.int64),
            "turns": Turns.single(length),
        }
        return cls(
            step=step,
            prompt_key=prompt_key,
            group_row=group_row,
            length=length,
            max_new_tokens=np.full(n, max_new_tokens),
            prompt_tokens=np.full(n, prompt_tokens),
            **{**usual, **more},
        )

    @property
    def truncated(self) -> Bools:
        """(n,) the cap ends it."""
        return np.asarray(self.length >= self.max_new_tokens)

    def __len__(self) -> int:
        return len(self.length)

    def of(self, rows: Ints) -> "Asked":
        """Some of the trajectories, in that order; groups keep their rows."""
        own: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        for name in SHARED:
            own[name] = np.broadcast_to(getattr(self, name), len(self))[rows]
        turns = self.turns.of(rows)
        return replace(self, group_row=self.group_row[rows], turns=turns, **own)


@dataclass(frozen=True)
class Workload:
    """A run's steps, and what had to be assumed of it."""

    steps: Sequence[Asked]
    assumed: Sequence[str] = ()

    @property
    def trajectories(self) -> int:
        """In all steps."""
        return sum(len(step) for step in self.steps)

    def groups(self) -> "Groups":
        """All steps' groups one after another, for a stream."""
        first = np.cumsum([0, *(len(step.prompt_key) for step in self.steps)])
        rows = [step.group_row + first[i] for i, step in enumerate(self.steps)]

        def joined(name: str) -> Any:
            return np.concatenate([getattr(step, name) for step in self.steps])

        def joined_turns(name: str) -> Any:
            return np.concatenate([getattr(step.turns, name) for step in self.steps])

        def joined_shared(name: str) -> Any:
            parts = [np.broadcast_to(getattr(step, name), len(step)) for step in self.steps]
            return np.concatenate(parts)

        turns = ("count", "tokens", "wait_s", "extra_tokens")
        return Groups(
            Asked(
                step=0,
                prompt_key=joined("prompt_key"),
                group_row=np.concatenate(rows),
                turns=Turns(*(joined_turns(name) for name in turns)),
                **{name: joined(name) for name in COLUMNS},
                **{name: joined_shared(name) for name in SHARED},
            )
        )

    def imputed(self, rng: np.random.Generator) -> "Workload":
        """Censored lengths drawn from what is longer."""
        if not any(step.censored.any() for step in self.steps):
            return self
        length = np.concatenate([step.length for step in self.steps])
        whole = ~np.concatenate([step.censored for step in self.steps])
        key = np.concatenate([step.prompt_key[step.group_row] for step in self.steps])
        known, known_key = length[whole], key[whole]
        drawn = []
        for step in self.steps:
            own = step.length.copy()
            for row in np.flatnonzero(step.censored):
                longer = known > own[row]
                same = longer & (known_key == step.prompt_key[step.group_row[row]])
                pool = known[same] if same.sum() >= OWN_LENGTHS else known[longer]
                if len(pool):
                    own[row] = rng.choice(pool)
            capped = np.minimum(own, step.max_new_tokens)
            none = np.zeros_like(step.censored)
            turns = step.turns.reaching(capped)
            drawn.append(replace(step, length=capped, censored=none, turns=turns))
        return replace(self, steps=drawn)


@dataclass(frozen=True)
class Groups:
    """Groups in the order they are admitted; rows of `whole` are sorted by group."""

    whole: Asked

    @property
    def count(self) -> int:
        """How many."""
        return len(self.whole.prompt_key)

    def part(self, first: int, last: int, step: int) -> Asked:
        """The groups `first` .. `last` - 1, asked for in a step."""
        w = self.whole
        begin, end = np.searchsorted(w.group_row, [first, last])
        part = w.of(np.arange(int(begin), int(end)))
        return replace(
            part, step=step, prompt_key=w.prompt_key[first:last], group_row=part.group_row - first
        )


def workload_of(run: RunTable) -> Workload:
    """The steps of a run table.  Raises `InvalidInputError` if it tells no lengths."""
    frame, assumed = run.frame, list(run.info.assumed)
    if frame["generated_tokens"].null_count() == len(frame):
        raise InvalidInputError("the run tells no lengths (generated_tokens); nothing to replay")
    lost = frame["generated_tokens"].null_count()
    if lost:
        assumed.append(f"{lost} trajectories without a length are left out")
        frame = frame.filter(frame["generated_tokens"].is_not_null())
    if frame["step"].null_count():
        assumed.append("all trajectories belong to one step")
    if frame["group_id"].null_count():
        assumed.append("trajectories without a group are groups of one")
    if frame["prompt_tokens"].null_count():
        assumed.append("prompts whose length is not told have no tokens: their prefill is free")
    length = frame["generated_tokens"].to_numpy().astype(np.int64)
    truncated = frame["truncated"].fill_null(False).to_numpy().astype(np.bool_)
    cap = frame["max_new_tokens"].fill_null(0).to_numpy().astype(np.int64)
    if (cap == 0).any():
        longest = int(length[truncated].max()) if truncated.any() else NO_CAP
        assumed.append(f"the token cap, where it is not told, is {longest}")
        cap = np.where(cap == 0, np.maximum(longest, length), cap)
    step = frame["step"].fill_null(0).to_numpy().astype(np.int64)
    alone = -1 - np.arange(len(frame))
    group = frame["group_id"].fill_null(-1).to_numpy().astype(np.int64)
    group = np.where(group < 0, alone, group)
    key = frame["prompt_key"].fill_null(-1).to_numpy().astype(np.int64)
    whole = Asked(
        step=0,
        prompt_key=key,
        group_row=group,
        prompt_tokens=frame["prompt_tokens"].fill_null(0).to_numpy().astype(np.int64),
        length=np.clip(length, 1, cap),
        max_new_tokens=np.maximum(cap, 1),
        censored=frame["censored"].fill_null(False).to_numpy().astype(np.bool_),
        reward=frame["reward"].fill_null(np.nan).to_numpy().astype(np.float64),
        images=frame["images"].fill_null(0).to_numpy().astype(np.int64),
        turns=turns_of(frame, np.clip(length, 1, cap)),
    )
    if frame["images"].sum():
        assumed.append("all images of a prompt cost the same to encode, as the fleet's option says")
    steps = [_part(whole, number, np.flatnonzero(step == number)) for number in np.unique(step)]
    return Workload(steps, assumed)


def _part(whole: Asked, number: int, rows: Ints) -> Asked:
    """One step of a run whose `prompt_key` and `group_row` are per trajectory."""
    rows = rows[np.argsort(whole.group_row[rows], kind="stable")]
    _, first, group_row = np.unique(whole.group_row[rows], return_index=True, return_inverse=True)
    prompt = whole.prompt_key[rows][first]
    # a prompt without a name is one of its own
    own = (1 << 40) + (int(number) << 20) + np.arange(len(first))
    return replace(
        whole.of(rows),
        step=int(number),
        prompt_key=np.where(prompt < 0, own, prompt),
        group_row=group_row,
    )
