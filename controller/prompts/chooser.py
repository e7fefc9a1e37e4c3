"""Which prompts a trainer rolls out next: a prompt policy, a pool, what is known of every prompt.

The pure core of every attach point: it reads no clock and does no I/O; randomness follows from the
seed and how often something was drawn.

    chooser.set_pool(ids)
    chosen = chooser.choose(groups_wanted, step, weight_version)
    ...                                                  # roll out, reward
    chooser.observe(prompt_id, rewards, weight_version)  # a trainer that trains on every group
    more, selection = chooser.extend(groups), chooser.finished(groups)  # one that lets it select

A policy that draws from all candidates whatever their order (`any_order`) is offered the pool as it
stands; the others are offered it in a data loader's order (`_turns`), the next `offered` of it.
No prompt is chosen twice in a step, nor while it is withheld.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steersman.controller.prompts._pool import PromptId, PromptPool, key_of
from steersman.controller.prompts._turns import Turns
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Ints, Normaliser
from steersman.estimators.success import DynamicLogistic
from steersman.policies.contract import AnyOrder, PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptRequest, Selection

__all__ = ["Chosen", "PromptChooser", "PromptId", "key_of"]

MOST_PROMPTS = 16_000_000
"""Remembered by the estimator, those that left the pool included; 0.5 GB."""


@dataclass(frozen=True)
class Chosen:
    """m prompts to roll out."""

    prompt_id: list[PromptId]
    prompt_key: Ints
    """(m,) `key_of` the ids, as in observations and groups."""
    size: Ints
    """(m,) samples of each."""
    max_new_tokens: Ints
    """(m,) token cap of each."""
    inclusion_probability: Floats
    """(m,) in (0, 1]."""
    weight: Floats
    """(m,) inverse of the inclusion probability over its mean: 1 on average."""
    reason: str
    """One sentence for a person."""

    def __len__(self) -> int:
        return len(self.prompt_id)


class _Group(NamedTuple):
    """A group that was observed and is not learned yet."""

    key: int
    rewards: list[float]
    weight_version: int
    tokens: list[int] | None


class PromptChooser:
    """Policy, estimator and pool; `state_dict` is all of it, and goes on exactly."""

    def __init__(
        self,
        policy: PromptPolicy,
        *,
        group_size: int,
        max_new_tokens: int,
        normaliser: Normaliser = Normaliser.STD,
        seed: int = 0,
        estimator: DynamicLogistic | None = None,
        offered: int | None = None,
        shuffle: bool = True,
        selects: bool = True,
    ) -> None:
        if min(group_size, max_new_tokens) < 1 or (offered is not None and offered < 1):
            raise InvalidInputError("group_size, max_new_tokens and offered are 1 or more")
        self.policy, self._seed = policy, seed
        self._group_size, self._max_new_tokens = group_size, max_new_tokens
        self._normaliser, self._offered = normaliser, offered
        self._selects = selects
        self._pool = PromptPool(estimator or DynamicLogistic(max_prompts=MOST_PROMPTS))
        any_order = isinstance(policy, AnyOrder) and policy.any_order
        self._turns = None if any_order else Turns(seed, shuffle)
        self._draws = self._step = 0
        self._taken: Ints = np.zeros(0, dtype=np.int64)
        """Keys of the prompts chosen in this step."""
        self._observed: list[_Group] = []

    @property
    def pool_size(self) -> int:
        """Prompts of the pool."""
        return len(self._pool)

    @property
    def available(self) -> int:
        """Prompts that are not withheld."""
        return len(self._pool) - int(self._pool.withheld.sum())

    @property
    def nbytes(self) -> int:
        """Memory of all that is known of prompts, policies' own aside; the ids are the caller's."""
        return self._pool.nbytes

    def longest_unvisited(self, step: int) -> tuple[PromptId, int]:
        """The prompt that was chosen, or came into the pool, the longest ago, and how many steps
        ago."""
        row = int(self._pool.visited.argmin())
        return self._pool.ids[row], step - int(self._pool.visited[row])

    def set_pool(self, ids: Sequence[PromptId]) -> None:
        """The prompts there are, in the caller's order; what is known of those that remain is kept.

        The sequence is kept as it is and must not change.
        """
        before = self._pool.replace(ids, self._step)
        if self._turns is not None:
            self._turns.carry_over(before)

    def withhold(self, prompt_ids: Iterable[PromptId]) -> None:
        """Do not choose these until they are released; ids that are not in the pool do not
        matter."""
        self._pool.withheld[self._rows(prompt_ids)] = True

    def release(self, prompt_ids: Iterable[PromptId] | None = None) -> None:
        """They may be chosen again; None: all."""
        rows = slice(None) if prompt_ids is None else self._rows(prompt_ids)
        self._pool.withheld[rows] = False

    def choose(self, groups_wanted: int, step: int, weight_version: int, refill: int = 0) -> Chosen:
        """Prompts for so many groups that the batch still lacks; `refill`: times asked before for
        this batch."""
        self._learn_observed()
        if step != self._step:
            self._step, self._taken = step, self._taken[:0]
        rows = self._offer()
        pool = self._pool
        candidates = pool.candidates(rows, step, weight_version, self._group_size)
        request = PromptRequest(
            step=step,
            weight_version=weight_version,
            groups_wanted=groups_wanted,
            group_size=self._group_size,
            max_new_tokens=self._max_new_tokens,
            candidates=candidates,
            normaliser=self._normaliser,
            refill=refill,
            selects=self._selects,
        )
        choice = self.policy.choose(request, self._rng())
        if self._turns is not None and rows is not None:
            # who chooses nothing to begin with meets other prompts the next time
            passed = choice.row if len(choice) or refill else np.arange(len(rows))
            self._turns.pass_over(rows, passed)
        row = choice.row if rows is None else rows[choice.row]
        pool.visited[row] = step
        key = pool.key[row]
        self._taken = np.concatenate((self._taken, key))
        weight = 1.0 / choice.inclusion_probability
        return Chosen(
            prompt_id=[pool.ids[each] for each in row.tolist()],
            prompt_key=key,
            size=choice.size,
            max_new_tokens=choice.max_new_tokens,
            inclusion_probability=choice.inclusion_probability,
            weight=weight / weight.mean() if len(weight) else weight,
            reason=choice.reason,
        )

    def observe(
        self,
        prompt_id: PromptId,
        rewards: Sequence[float] | Floats,
        weight_version: int,
        tokens: Sequence[int] | Ints | None = None,
    ) -> int:
        """Learn a whole group of a trainer that trains on every group.

        Returns how many of its rewards are not known (NaN); they are left out.
        """
        self._pool.row_of(prompt_id)
        told = np.asarray(rewards, dtype=np.float64).reshape(-1)
        if tokens is not None and len(tokens) != len(told):
            raise InvalidInputError(
                f"prompt {prompt_id!r}: {len(tokens)} lengths for {len(told)} rewards"
            )
        if not np.isfinite(told[~np.isnan(told)]).all():
            raise InvalidInputError(f"prompt {prompt_id!r}: a reward is infinite")
        if len(told):
            lengths = None if tokens is None else [int(each) for each in tokens]
            self._observed.append(_Group(key_of(prompt_id), told.tolist(), weight_version, lengths))
        return int(np.isnan(told).sum())

    def extend(self, groups: FinishedGroups) -> Ints:
        """(m,) samples that each of the groups, all of whose samples have ended, gets more."""
        return self.policy.extend(groups, self._rng())

    def finished(self, groups: FinishedGroups) -> Selection:
        """Learn complete groups, each shown once, and select what of them goes to the trainer.

        A group's weight is that of its choice times that of the selection, over the batch's mean.
        """
        self._learn_observed()
        self.policy.learn(groups)
        selection = self.policy.select(groups, self._rng())
        self._pool.learn(groups)
        return selection

    def state_dict(self) -> dict[str, Any]:
        """Everything but the ids, which are the data set's: plain values and arrays."""
        return {
            "draws": self._draws,
            "step": self._step,
            "taken": self._taken.copy(),
            "observed": [list(group) for group in self._observed],
            "policy": self.policy.state_dict(),
            "pool": self._pool.state_dict(),
            "turns": None if self._turns is None else self._turns.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly there.  The pool must have been set; of other prompts than the state's,
        what is known of those in both is taken over."""
        self._draws, self._step = int(state["draws"]), int(state["step"])
        self._taken = np.asarray(state["taken"], dtype=np.int64)
        self._observed = [_Group(*group) for group in state["observed"]]
        self.policy.load_state_dict(state["policy"])
        before = self._pool.load_state_dict(state["pool"])
        if (self._turns is None) != (state["turns"] is None):
            raise InvalidInputError("the state is of a policy that goes through prompts otherwise")
        if self._turns is not None:
            self._turns.load_state_dict(state["turns"], before)

    def _offer(self) -> Ints | None:
        """Rows that may be chosen; None: all."""
        pool, allowed = self._pool, None
        if len(self._taken) or pool.withheld.any():
            allowed = ~pool.withheld
            taken = pool.find(self._taken)
            allowed[taken[taken >= 0]] = False
        if self._turns is not None:
            return self._turns.offer(allowed)[: self._offered]
        return None if allowed is None else np.flatnonzero(allowed)

    def _learn_observed(self) -> None:
        """The groups that were observed since the last choice, in one go."""
        for told in (True, False):
            groups = [each for each in self._observed if (each.tokens is not None) is told]
            if groups:
                table = _table(groups, self._step)
                self.policy.learn(table)
                self._pool.learn(table, tokens_known=told)
        self._observed = []

    def _rows(self, prompt_ids: Iterable[PromptId]) -> Ints:
        found = self._pool.find(np.array([key_of(each) for each in prompt_ids], dtype=np.int64))
        return found[found >= 0]

    def _rng(self) -> np.random.Generator:
        self._draws += 1
        return np.random.default_rng((self._seed, self._draws))


def _table(groups: list[_Group], step: int) -> FinishedGroups:
    sizes = [len(group.rewards) for group in groups]
    m, n = len(groups), sum(sizes)
    version = np.array([group.weight_version for group in groups])
    lengths = [group.tokens or [0] * len(group.rewards) for group in groups]
    return FinishedGroups(
        group_id=np.arange(m),
        prompt_key=np.array([group.key for group in groups], dtype=np.int64),
        weight_version=version,
        group_row=np.repeat(np.arange(m), sizes),
        trajectory_id=np.arange(n),
        reward=np.concatenate([group.rewards for group in groups]).astype(np.float64),
        tokens=np.concatenate(lengths).astype(np.int64),
        truncated=np.zeros(n, dtype=np.bool_),
        step=step,
        weight_version_now=int(version.max()),
    )
