"""The books of prompts that a policy chose: what is to begin, what runs, what awaits its rewards.

    chosen -> (to begin) -> begun -> delivered, with rewards -> learned
                                  -> delivered without        -> awaiting -> learned, or given up

A draw asks for a whole batch, of which groups begin as places become free.  What was chosen and not
delivered is owed: it is part of the state, and after a resumption begins first, on the terms on
which it was drawn; so no prompt is lost or repeated.  It is withheld from further draws meanwhile.

Rewards may come after delivery, sample by sample.  A group is learned once all are known.  If
`MOST_AWAITING` groups wait, the one that waits longest is learned with what is known of it, and the
first time a warning names its prompt: a trainer that never rewards costs no memory beyond that, and
gets choices that know nothing.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.controller.groups import GroupState
from steersman.controller.prompts.chooser import PromptId
from steersman.controller.prompts.fail_open import FailOpen
from steersman.controller.results import Group, GroupTerms, Prompt
from steersman.controller.trace import records
from steersman.estimators.errors import InvalidInputError
from steersman.policies.prompting import FinishedGroups, Selection

MOST_AWAITING = 8_192
"""Groups: as many as the answers of which the ledger still takes rewards, at 8 per group."""
UNKNOWN = float("nan")
NEVER = -1
DEFAULT = "any"
"""Who chose, where the policy was not asked or failed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """One prompt to roll out."""

    prompt: Prompt
    size: int
    max_new_tokens: int
    terms: GroupTerms


@dataclass
class _Awaiting:
    """A delivered group some of whose rewards are not known."""

    prompt_id: str
    weight_version: int
    rewards: dict[int, float]
    """By trajectory; NaN: not known yet."""
    tokens: list[int] = field(default_factory=list)


class PromptAdmission:
    """What was chosen from one pool by one chooser."""

    def __init__(self, asked: FailOpen, policy: str) -> None:
        self._asked, self.chooser, self.policy = asked, asked.chooser, policy
        self.filtered = 0
        """Complete groups that were not accepted, in this session."""
        self._prompts: dict[str, Prompt] = {}
        self._to_begin: deque[Choice] = deque()
        self._begun: dict[int, Choice] = {}
        """By group, oldest first."""
        self._awaiting: dict[int, _Awaiting] = {}
        """By group, oldest first."""
        self._group_of: dict[int, int] = {}
        """Group of each trajectory that awaits its reward."""
        self._step, self._batch, self._refill = NEVER, NEVER, 0
        """The trainer's step, the batch that is drawn for it, and draws for that before."""
        self._warned = False

    def set_pool(self, prompts: Sequence[Prompt]) -> None:
        """Choose from these from now on; what is known of those that remain is kept."""
        pool = {prompt.prompt_id: prompt for prompt in prompts}
        if len(pool) < len(prompts):
            raise InvalidInputError(f"prompt {_twice(prompts)!r} is in the pool twice")
        if not pool:
            raise InvalidInputError("the pool has no prompts; valid: one or more")
        self.chooser.set_pool(list(pool))
        self._prompts = pool
        self._to_begin = deque(c for c in self._to_begin if c.prompt.prompt_id in pool)
        self.chooser.withhold([c.prompt.prompt_id for c in self._owed()])

    def begin_batch(self) -> None:
        """The next draw is the first of a batch, whatever the step."""
        self._step = NEVER

    def draw(
        self, groups_wanted: int, step: int, weight_version: int, now_s: float
    ) -> records.PromptsChosen:
        """Choose prompts for so many groups, which wait to begin."""
        if not self._prompts:
            raise InvalidInputError("there is no pool to choose from; call set_pool first")
        available = self.chooser.available
        self._refill += 1
        if step != self._step:
            self._step, self._batch, self._refill = step, max(step, self._batch + 1), 0
        chosen, by_policy = self._asked.choose(
            groups_wanted, self._batch, weight_version, self._refill, self._available
        )
        policy = self.policy if by_policy else DEFAULT
        columns = (chosen.size, chosen.max_new_tokens, chosen.inclusion_probability, chosen.weight)
        rows = zip(chosen.prompt_id, *(column.tolist() for column in columns), strict=True)
        for prompt_id, size, cap, probability, weight in rows:
            terms = GroupTerms(probability, weight, policy)
            prompt = self._prompts[str(prompt_id)]
            self._to_begin.append(Choice(prompt, size, cap, terms))
        self.chooser.withhold(chosen.prompt_id)
        longest, steps = self.chooser.longest_unvisited(self._batch)
        return records.PromptsChosen(
            t_s=now_s,
            step=step,
            refill=self._refill,
            policy=policy,
            groups_wanted=groups_wanted,
            chosen=len(chosen),
            reason=chosen.reason,
            pool=len(self._prompts),
            available=available,
            waited_longest=str(longest),
            waited_steps=steps,
        )

    @property
    def waiting(self) -> int:
        """Choices that have not begun."""
        return len(self._to_begin)

    @property
    def next_choice(self) -> Choice:
        """The one that shall begin now, if any waits; say which group it became (`begun`)."""
        return self._to_begin[0]

    def begun(self, group_id: int) -> None:
        """The next choice runs as that group."""
        self._begun[group_id] = self._to_begin.popleft()

    def given_up(self, group_ids: Sequence[int]) -> None:
        """The groups were abandoned; their prompts begin again before any others."""
        choices = [self._begun.pop(group_id) for group_id in sorted(group_ids)]
        self._to_begin.extendleft(
            choice for choice in reversed(choices) if choice.prompt.prompt_id in self._prompts
        )

    def extend(self, groups: FinishedGroups) -> list[int]:
        """Samples that each of the groups gets more."""
        more: list[int] = self._asked.extend(groups).tolist()
        return more

    def select(self, groups: FinishedGroups) -> Selection:
        """Learn complete groups and decide what of them is trained on."""
        selection = self._asked.finished(groups)
        if len(selection.replayed):
            raise InvalidInputError(
                f"the prompt policy {self.policy} trains on earlier groups again, which a session "
                "does not keep; valid: policies that do not replay"
            )
        self.filtered += len(groups) - int(selection.accepted.sum())
        return selection

    def delivered(self, group: GroupState, answer: Group) -> None:
        """The trainer has it; its rewards, if they are not known yet, may still come."""
        choice = self._begun.pop(group.group_id)
        self.chooser.release([choice.prompt.prompt_id])
        if answer.rewards:
            return
        versions = [s.weight_version for t in answer.trajectories for s in t.segments]
        rewards = {t.trajectory_id: UNKNOWN for t in answer.trajectories}
        self._awaiting[group.group_id] = _Awaiting(
            prompt_id=choice.prompt.prompt_id,
            weight_version=min(versions, default=0),
            rewards=rewards,
            tokens=[len(t.token_ids) for t in answer.trajectories],
        )
        self._group_of.update(dict.fromkeys(rewards, group.group_id))
        if len(self._awaiting) > MOST_AWAITING:
            self._give_up(next(iter(self._awaiting)))

    def dropped(self, group_id: int) -> None:
        """It was filtered; its prompt may be chosen again."""
        choice = self._begun.pop(group_id)
        self.chooser.release([choice.prompt.prompt_id])

    def reward(self, trajectory_id: int, reward: float) -> None:
        """What a sample of a delivered group earned; of others nothing is learned here."""
        group_id = self._group_of.pop(trajectory_id, None)
        if group_id is None:
            return
        awaiting = self._awaiting[group_id]
        awaiting.rewards[trajectory_id] = reward
        if not any(np.isnan(list(awaiting.rewards.values()))):
            self._learn(self._awaiting.pop(group_id))

    def observe(self, prompt_id: str, rewards: Sequence[float], weight_version: int) -> None:
        """Learn a group that was rolled out elsewhere."""
        if prompt_id not in self._prompts:
            raise InvalidInputError(f"there is no prompt {prompt_id!r} in the pool")
        self.chooser.observe(prompt_id, rewards, weight_version)

    def state_dict(self) -> dict[str, Any]:
        """What is known, and what is owed.  The pool is the caller's; so is what was delivered."""
        return {
            "chooser": self.chooser.state_dict(),
            "owed": [
                [c.prompt.prompt_id, c.size, c.max_new_tokens, c.terms.inclusion_probability,
                 c.terms.weight]
                for c in self._owed()
            ],
            "step": self._step,
            "batch": self._batch,
            "refill": self._refill,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the pool of now."""
        self.chooser.load_state_dict(state["chooser"])
        self._step, self._batch = int(state["step"]), int(state["batch"])
        self._refill = int(state["refill"])
        self._to_begin = deque(
            Choice(
                self._prompts[prompt_id], size, cap, GroupTerms(probability, weight, self.policy)
            )
            for prompt_id, size, cap, probability, weight in state["owed"]
            if prompt_id in self._prompts
        )

    def _available(self) -> list[PromptId]:
        owed = {choice.prompt.prompt_id for choice in self._owed()}
        return [prompt_id for prompt_id in self._prompts if prompt_id not in owed]

    def _owed(self) -> list[Choice]:
        return [*self._begun.values(), *self._to_begin]

    def _give_up(self, group_id: int) -> None:
        awaiting = self._awaiting.pop(group_id)
        for trajectory_id in awaiting.rewards:
            self._group_of.pop(trajectory_id, None)
        if not self._warned:
            self._warned = True
            log.warning(
                "%d groups await their rewards, that of prompt %r the longest; it is given up, and "
                "so are others from now on, silently: the prompt policy learns nothing of them",
                MOST_AWAITING + 1,
                awaiting.prompt_id,
            )
        self._learn(awaiting)

    def _learn(self, group: _Awaiting) -> None:
        if group.prompt_id in self._prompts:  # it may have left the pool meanwhile
            rewards = list(group.rewards.values())
            self.chooser.observe(group.prompt_id, rewards, group.weight_version, group.tokens)


def _twice(prompts: Sequence[Prompt]) -> str:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            return prompt.prompt_id
        seen.add(prompt.prompt_id)
    raise AssertionError
