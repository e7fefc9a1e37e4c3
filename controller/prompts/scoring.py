"""From answers to rewards, and to the table that prompt policies learn from."""

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from steersman.controller.groups import GroupState
from steersman.controller.results import Prompt, Trajectory
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import Disposition
from steersman.policies.prompting import FinishedGroups

Scorer = Callable[[Prompt, Sequence[Trajectory]], Sequence[float] | Awaitable[Sequence[float]]]
"""Rewards of some answers to a prompt, in their order; NaN where one cannot be told."""


async def scored(scorer: Scorer, prompt: Prompt, trajectories: Sequence[Trajectory]) -> list[float]:
    """What the scorer says, checked."""
    told = scorer(prompt, trajectories)
    rewards = [float(r) for r in (await told if inspect.isawaitable(told) else told)]
    if len(rewards) != len(trajectories):
        raise InvalidInputError(
            f"the scorer told {len(rewards)} rewards for the {len(trajectories)} answers to prompt "
            f"{prompt.prompt_id!r}"
        )
    if any(math.isinf(reward) for reward in rewards):
        raise InvalidInputError(
            f"the scorer told an infinite reward for prompt {prompt.prompt_id!r}; valid: finite, "
            "or NaN where it is not known"
        )
    return rewards


def finished_groups(
    groups: Sequence[tuple[GroupState, Sequence[float]]], step: int, weight_version: int
) -> FinishedGroups:
    """Complete groups and the rewards of their samples, as prompt policies see them."""
    executions = [execution for group, _ in groups for execution in group.slots]
    oldest = [
        min((e.oldest_weight_version or 0 for e in group.slots), default=0) for group, _ in groups
    ]
    return FinishedGroups(
        group_id=np.array([group.group_id for group, _ in groups]),
        prompt_key=np.array([group.prompt.key for group, _ in groups]),
        weight_version=np.array(oldest),
        group_row=np.repeat(np.arange(len(groups)), [group.size for group, _ in groups]),
        trajectory_id=np.array([e.spec.trajectory_id for e in executions]),
        reward=np.array([reward for _, rewards in groups for reward in rewards], dtype=np.float64),
        tokens=np.array([len(e.tokens) for e in executions]),
        truncated=np.array([e.disposition is Disposition.TRUNCATED for e in executions]),
        step=step,
        weight_version_now=weight_version,
        mean_logprob=np.array([sum(e.logprobs) / max(len(e.logprobs), 1) for e in executions]),
    )
