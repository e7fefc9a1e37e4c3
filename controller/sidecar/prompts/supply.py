"""Prompts and whole groups for a trainer that rolls out elsewhere: what a session does for its own.

    supply.set_pool(ids)
    plan = supply.next(...)               # a prompt, a size, a cap; None: nothing to begin now
    ...                                   # roll it out, score the answers
    verdict = supply.complete(answers)    # more samples, or accepted, or filtered
    supply.settle(plan.number)            # the trainer has it, or nobody will

The prompt policy of the configuration chooses, extends and selects, as in a session (`admission`
keeps the books, and fails open).  On top of it, groups whose rewards are all equal can be dropped
whatever the policy: they have no advantage.

What was chosen is owed until it is settled: it is withheld from other draws, is part of the state,
and begins first after a resumption.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steersman.controller.config import Config
from steersman.controller.prompts.admission import Choice, PromptAdmission
from steersman.controller.prompts.building import chooser_of
from steersman.controller.prompts.chooser import key_of
from steersman.controller.prompts.fail_open import FailOpen
from steersman.controller.results import Prompt
from steersman.estimators.errors import InvalidInputError
from steersman.policies.prompting import FinishedGroups


@dataclass(frozen=True, slots=True)
class Plan:
    """A group to roll out."""

    number: int
    """The group's, rising."""
    prompt_id: str
    size: int
    max_new_tokens: int
    inclusion_probability: float
    weight: float
    """Inverse of the inclusion probability, over its mean among those drawn together."""


@dataclass(frozen=True, slots=True)
class Answers:
    """All samples that a group has so far."""

    number: int
    rewards: Sequence[float]
    """NaN: not known."""
    tokens: Sequence[int]
    """Written, of each."""
    truncated: Sequence[bool]
    mean_logprob: Sequence[float]
    """Per token."""
    weight_version: int
    """Oldest that wrote any of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a group."""

    more: int = 0
    """Samples to roll out before it is judged again."""
    accepted: bool = False
    train: tuple[bool, ...] = ()
    """Which of its samples are trained on."""
    weight: float = 1.0
    """Of the group in means over a batch: inverse of the chance that it was chosen and kept."""


class PromptSupply:
    """One pool, one policy, and the groups under way."""

    def __init__(
        self, config: Config, group_size: int, max_new_tokens: int, *, drop_degenerate: bool = True
    ) -> None:
        chooser = chooser_of(config, group_size, max_new_tokens)
        asked = FailOpen(chooser, group_size, max_new_tokens, config.seed, lambda: "")
        self._admission = PromptAdmission(asked, config.prompts.name)
        self._drop_degenerate = drop_degenerate
        self._next_number = 0
        self._under_way: dict[int, Choice] = {}
        self._taught: dict[str, bool] = {}
        """Whether the last group of each prompt taught anything, of prompts rolled out before."""
        self._in_vain: tuple[int, int] | None = None
        """Step and groups under way when a draw had no prompts."""
        self.counts = Counter[str](
            dict.fromkeys(("begun", "revisits", "second_chances", "extended", "accepted",
                           "filtered", "given_up"), 0)
        )  # fmt: skip
        """Groups begun; of these, of prompts that had been rolled out before (revisits), and of
        such whose last group had taught nothing (second chances); and how groups ended."""

    def set_pool(self, prompt_ids: Sequence[str]) -> None:
        """The prompts there are; what is known of those that remain is kept."""
        self._admission.set_pool([Prompt(prompt_id, ()) for prompt_id in prompt_ids])

    def next(self, groups_wanted: int, step: int, weight_version: int, now_s: float) -> Plan | None:
        """The next group to begin; draws for `groups_wanted` when nothing that was drawn waits.

        None: the policy has no prompts while what is under way is not settled.
        """
        admission = self._admission
        if not admission.waiting and not self._drew(groups_wanted, step, weight_version, now_s):
            return None
        choice, number = admission.next_choice, self._next_number
        self._next_number += 1
        admission.begun(number)
        self._under_way[number] = choice
        prompt_id = choice.prompt.prompt_id
        self.counts["begun"] += 1
        if prompt_id in self._taught:
            self.counts["revisits"] += 1
            self.counts["second_chances"] += not self._taught[prompt_id]
        return Plan(
            number=number,
            prompt_id=prompt_id,
            size=choice.size,
            max_new_tokens=choice.max_new_tokens,
            inclusion_probability=choice.terms.inclusion_probability,
            weight=choice.terms.weight,
        )

    def complete(self, answers: Answers, step: int, weight_version: int) -> Verdict:
        """All samples of a group have ended and are scored."""
        choice = self._choice(answers.number)
        table = _table(answers, choice, step, weight_version)
        (more,) = self._admission.extend(table)
        if more > 0:
            self.counts["extended"] += 1
            return Verdict(more=more)
        selection = self._admission.select(table)
        informative = bool(table.informative[0])
        accepted = bool(selection.accepted[0]) and (informative or not self._drop_degenerate)
        self._taught[choice.prompt.prompt_id] = informative
        self.counts["accepted" if accepted else "filtered"] += 1
        train = selection.train if accepted else np.zeros(len(answers.rewards), np.bool_)
        return Verdict(
            accepted=accepted,
            train=tuple(train.tolist()),
            weight=choice.terms.weight * float(selection.weights[0]),
        )

    def settle(self, number: int) -> None:
        """Nothing is owed for that group any more: its prompt may be chosen again."""
        self._choice(number)
        del self._under_way[number]
        self._admission.dropped(number)

    def give_up(self, numbers: Sequence[int]) -> None:
        """These were abandoned: their prompts begin again before any others."""
        for number in numbers:
            self._choice(number)
            del self._under_way[number]
        self._admission.given_up(numbers)
        self.counts["given_up"] += len(numbers)

    def state_dict(self) -> dict[str, Any]:
        """What is known of prompts, and what is owed; the pool is the caller's."""
        return {
            "admission": self._admission.state_dict(),
            "next_number": self._next_number,
            "taught": dict(self._taught),
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, after `set_pool`; what was under way begins again."""
        self._admission.load_state_dict(state["admission"])
        self._next_number = int(state["next_number"])
        self._taught = {str(k): bool(v) for k, v in state["taught"].items()}
        self.counts = Counter({str(k): int(v) for k, v in state["counts"].items()})
        self._under_way.clear()
        self._in_vain = None

    def _drew(self, groups_wanted: int, step: int, weight_version: int, now_s: float) -> bool:
        """Asked in vain, it asks again once something has changed.  A policy that has refilled a
        batch often enough, with nothing under way, begins a new one."""
        now = (step, len(self._under_way))
        if now == self._in_vain:
            return False
        admission = self._admission
        if admission.draw(groups_wanted, step, weight_version, now_s).chosen:
            return True
        if not self._under_way:
            admission.begin_batch()
            if admission.draw(groups_wanted, step, weight_version, now_s).chosen:
                return True
        self._in_vain = now
        return False

    def _choice(self, number: int) -> Choice:
        if number not in self._under_way:
            raise InvalidInputError(f"group {number} is not under way")
        return self._under_way[number]


def _table(answers: Answers, choice: Choice, step: int, weight_version: int) -> FinishedGroups:
    """One group, as prompt policies see it."""
    n = len(answers.rewards)
    return FinishedGroups(
        group_id=np.array([answers.number]),
        prompt_key=np.array([key_of(choice.prompt.prompt_id)]),
        weight_version=np.array([answers.weight_version]),
        group_row=np.zeros(n, dtype=np.int64),
        trajectory_id=np.arange(n),
        reward=np.asarray(answers.rewards, dtype=np.float64),
        tokens=np.asarray(answers.tokens, dtype=np.int64),
        truncated=np.asarray(answers.truncated, dtype=np.bool_),
        step=step,
        weight_version_now=weight_version,
        mean_logprob=np.asarray(answers.mean_logprob, dtype=np.float64),
    )
