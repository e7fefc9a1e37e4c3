"""The prompt policy, and what happens instead when it fails: any prompts of the pool, alike.

A policy that raises must not end a training run.  The draw is then uniform over what is available,
in the trainer's size and with its cap; groups are neither extended nor filtered.  Each failure is
logged; after `MAX_ERRORS` in a row the policy is not asked again.  Nor is it while the controller
is off, or only shadows.  Wrong input of the caller raises before a policy is asked.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from steersman.controller.loop import MAX_ERRORS
from steersman.controller.prompts.chooser import Chosen, PromptChooser, PromptId, key_of
from steersman.estimators.observation import Ints
from steersman.policies.prompting import FinishedGroups, Selection

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class FailOpen:
    """Asks a chooser, and knows an answer if it has none."""

    def __init__(
        self,
        chooser: PromptChooser,
        group_size: int,
        max_new_tokens: int,
        seed: int,
        why_off: Callable[[], str],
    ) -> None:
        self.chooser = chooser
        self._group_size, self._max_new_tokens, self._seed = group_size, max_new_tokens, seed
        self._why_off = why_off
        """Why the controller does not act; empty: it does."""
        self._why = ""
        """Why the policy was not asked, or what became of it."""
        self._errors = Counter[str]()
        """Failures in a row, by what was asked."""

    def choose(
        self,
        groups_wanted: int,
        batch: int,
        weight_version: int,
        refill: int,
        available: Callable[[], Sequence[PromptId]],
    ) -> tuple[Chosen, bool]:
        """The prompts, and whether the policy chose them."""
        chosen = self._asked(
            "choose", lambda: self.chooser.choose(groups_wanted, batch, weight_version, refill)
        )
        if chosen is not None:
            return chosen, True
        rng, offered = np.random.default_rng((self._seed, batch, refill)), available()
        count = min(groups_wanted, len(offered))
        ids = [offered[row] for row in rng.permutation(len(offered))[:count].tolist()]
        return Chosen(
            prompt_id=ids,
            prompt_key=np.array([key_of(each) for each in ids], dtype=np.int64),
            size=np.full(count, self._group_size),
            max_new_tokens=np.full(count, self._max_new_tokens),
            inclusion_probability=np.full(count, count / max(len(offered), 1)),
            weight=np.ones(count),
            reason=f"any of the pool: {self._why}",
        ), False

    def extend(self, groups: FinishedGroups) -> Ints:
        """(m,) samples that each gets more."""
        more = self._asked("extend", lambda: self.chooser.extend(groups))
        return np.zeros(len(groups), dtype=np.int64) if more is None else more

    def finished(self, groups: FinishedGroups) -> Selection:
        """Learned, and what is accepted."""
        selection = self._asked("finished", lambda: self.chooser.finished(groups))
        return Selection.everything(groups) if selection is None else selection

    def _asked(self, what: str, question: Callable[[], Answer]) -> Answer | None:
        if max(self._errors.values(), default=0) >= MAX_ERRORS:
            return None
        if self._why_off():
            self._why = self._why_off()
            return None
        try:
            answer = question()
        except Exception as error:
            self._errors[what] += 1
            self._why = f"the prompt policy failed with {error!r}"
            log.error("the prompt policy failed, any prompts are taken", exc_info=error)
            return None
        self._errors[what] = 0
        return answer
