"""Fresh samples: what a trajectory that takes another's slot writes, as far as a log can tell.

A restart draws a new sample of the same prompt.  The log holds some: one of them is taken, whatever
the step it was written in, the replaced one's own included; a prompt with a single sample borrows
one of the whole run.  The draw depends on the slot (prompt, group, place in the group, how many had
it before) and on the seed, on nothing else: policies that are compared meet the same samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steersman.controller.replay.turns import Turns
from steersman.controller.replay.workload import Asked, Workload
from steersman.estimators.observation import Ints


@dataclass(frozen=True)
class Slots:
    """m slots that need a fresh sample."""

    prompt_key: Ints
    group: Ints
    index: Ints
    """Place in the group."""
    restarts: Ints
    """Trajectories that had the slot before."""

    def __len__(self) -> int:
        return len(self.group)


Redraw = Callable[[Slots], Asked]
"""m samples; their groups, prompts, caps and images are not looked at."""


class FromWorkload:
    """Draws among the samples of a run."""

    def __init__(self, workload: Workload, seed: int = 0) -> None:
        self._workload, self._seed = workload, seed

    def __call__(self, slots: Slots) -> Asked:
        columns = (slots.prompt_key, slots.group, slots.index, slots.restarts)
        rows = [self._row(*slot) for slot in zip(*(c.tolist() for c in columns), strict=True)]
        return self._all.of(np.array(rows, dtype=np.int64))

    def _row(self, prompt_key: int, group: int, index: int, restarts: int) -> int:
        first, last = np.searchsorted(self._keys, [prompt_key, prompt_key + 1]).tolist()
        if last - first < 2:
            first, last = 0, len(self._keys)
        rng = np.random.default_rng((self._seed, prompt_key, group, index, restarts))
        return int(self._order[rng.integers(first, last)])

    @cached_property
    def _all(self) -> Asked:
        return self._workload.groups().whole

    @cached_property
    def _order(self) -> Ints:
        """Rows by prompt."""
        keys = self._all.prompt_key[self._all.group_row]
        return np.argsort(keys, kind="stable")

    @cached_property
    def _keys(self) -> Ints:
        """(n,) sorted."""
        return np.asarray(self._all.prompt_key[self._all.group_row][self._order])


def same_length(length: Ints) -> Asked:
    """Samples of these lengths (m,), of one turn and unknown reward."""
    zeros = np.zeros_like(length)
    return Asked(
        step=0,
        prompt_key=zeros,
        group_row=np.arange(len(length)),
        prompt_tokens=zeros,
        length=length,
        max_new_tokens=length,
        censored=zeros.astype(np.bool_),
        reward=np.full(len(length), np.nan),
        images=zeros,
        turns=Turns.single(length),
    )
