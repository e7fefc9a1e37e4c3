"""Prompts with drifting logistic pass rates, and the way of a step through a prompt policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from support.prompt_games import LOGISTIC_VARIANCE

from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import Candidates, FinishedGroups, PromptChoice, PromptRequest

FIRST_KEY = 10_000_000_000
MOST_ROUNDS = 300


def candidates(count: int, **columns: Any) -> Candidates:
    """Prompts of which nothing is known: a uniform pass rate."""
    table = Candidates(
        prompt_key=FIRST_KEY + np.arange(count),
        logit_mean=np.zeros(count),
        logit_variance=np.full(count, LOGISTIC_VARIANCE),
        mean_tokens=np.full(count, np.nan),
        group_size=8,
    )
    return replace(table, **columns)


def request(offered: Candidates, wanted: int, group_size: int = 8, **more: Any) -> PromptRequest:
    """For so many groups of these."""
    plain: dict[str, Any] = {"step": 0, "weight_version": 0, "max_new_tokens": 1024}
    return PromptRequest(
        groups_wanted=wanted,
        group_size=group_size,
        candidates=replace(offered, group_size=group_size),
        **plain | more,
    )


def finished(rewards: Sequence[Sequence[float]], **columns: Any) -> FinishedGroups:
    """Groups of these rewards, each of its own prompt."""
    size = [len(group) for group in rewards]
    m, n = len(size), sum(size)
    groups = FinishedGroups(
        group_id=np.arange(m),
        prompt_key=FIRST_KEY + np.arange(m),
        weight_version=np.zeros(m, dtype=np.int64),
        group_row=np.repeat(np.arange(m), size),
        trajectory_id=np.arange(n),
        reward=np.array([r for group in rewards for r in group], dtype=np.float64),
        tokens=np.full(n, 100),
        truncated=np.zeros(n, dtype=np.bool_),
    )
    return replace(groups, **columns)


@dataclass
class Step:
    """What a step cost and brought."""

    groups: list[FinishedGroups]
    accepted: int

    @property
    def samples(self) -> int:
        return sum(len(g.group_row) for g in self.groups)

    @property
    def informative(self) -> int:
        return sum(int(g.informative.sum()) for g in self.groups)

    @property
    def asked(self) -> int:
        return sum(len(g) for g in self.groups)


class PromptWorld:
    """The logit of a prompt's pass rate is N(0, spread^2) and walks by `drift` per step."""

    def __init__(
        self, seed: int, prompts: int = 600, spread: float = 3.0, drift: float = 0.05
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.logit = self.rng.normal(0.0, spread, prompts)
        self.drift, self.step = drift, 0

    @property
    def pass_rate(self) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-self.logit))

    def answer(self, rows: np.ndarray, choice: PromptChoice) -> FinishedGroups:
        """Groups of the choice among these prompts."""
        prompt = rows[choice.row]
        asked = zip(self.pass_rate[prompt], choice.size, strict=True)
        rewards = [self.rng.random(n) < rate for rate, n in asked]
        return finished(rewards, prompt_key=FIRST_KEY + prompt, step=self.step)

    def extended(self, groups: FinishedGroups, more: np.ndarray) -> FinishedGroups:
        """The groups with so many samples more."""
        rewards = []
        for g, n in enumerate(more):
            rate = self.pass_rate[groups.prompt_key[g] - FIRST_KEY]
            rewards.append([*groups.reward[groups.group_row == g], *(self.rng.random(n) < rate)])
        return finished(rewards, prompt_key=groups.prompt_key, step=self.step)

    def run_step(
        self, policy: PromptPolicy, wanted: int, rng: np.random.Generator, group_size: int = 8
    ) -> Step:
        """Ask until the batch is full (or the prompts are used up), then train."""
        rows, done = self.rng.permutation(len(self.logit)), Step([], 0)
        for refill in range(MOST_ROUNDS):
            offered = candidates(len(rows), prompt_key=FIRST_KEY + rows)
            asked = request(
                offered, wanted - done.accepted, group_size, step=self.step,
                weight_version=self.step, refill=refill,
            )  # fmt: skip
            choice = policy.choose(asked, rng)
            groups = self.answer(rows, choice)
            while (more := policy.extend(groups, rng)).any():
                groups = self.extended(groups, more)
            policy.learn(groups)
            done.groups.append(groups)
            done.accepted += int(policy.select(groups, rng).accepted.sum())
            rows = np.delete(rows, choice.row)
            if done.accepted >= wanted or not len(rows) or not len(choice):
                break
        self.step += 1
        self.logit += self.rng.normal(0.0, self.drift, len(self.logit))
        return done

    def run(self, policy: PromptPolicy, steps: int, wanted: int, seed: int = 0) -> list[Step]:
        """So many steps."""
        rng = np.random.default_rng(seed)
        return [self.run_step(policy, wanted, rng) for _ in range(steps)]
