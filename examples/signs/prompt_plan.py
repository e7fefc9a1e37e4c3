"""One run of the prompt study: an arm, a pool, a seed, a budget; its evaluations come back.

The equal-work control has no eyes: in every step it asks for as many samples as the run it belongs
to did, in whole groups, of prompts in the data loader's order, and trains on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from steersman.controller.evaluate.quality_log import QualityPoint
from steersman.controller.plugins import build
from steersman.examples.signs.grpo import held_out
from steersman.examples.signs.model import SignsModel, load_hf
from steersman.examples.signs.prompt_loop import LoopSettings, PromptLoop
from steersman.examples.signs.task import COUNTS, Problem, make_evaluation_pool
from steersman.policies.contract import PromptPolicy

MOST_STEPS = 1000
"""A policy that asks for nothing spends nothing, and would never end."""


@dataclass(frozen=True)
class Plan:
    """One run."""

    arm: str
    """Its name in the log."""
    policy: str
    options: tuple[tuple[str, object], ...]
    model: Path
    settings: LoopSettings
    budget_tokens: int
    every_tokens: int
    """Rollout tokens between evaluations."""
    problems: int
    """Per evaluation."""
    work: tuple[int, ...] = ()
    """Of a control: samples of each step, the last one's in all that follow; (): no control."""


def play(plan: Plan) -> list[QualityPoint]:
    """All evaluations: before the first step, whenever so many tokens were spent, and at the
    end."""
    torch.set_num_threads(1)
    policy: PromptPolicy = build("policies.prompts", plan.policy, dict(plan.options))
    settings = plan.settings
    loop = PromptLoop(load_hf(plan.model), policy, settings)
    problems = make_evaluation_pool(plan.problems, settings.seed)
    points = [_point(plan, loop, problems)]
    while loop.costs.tokens < plan.budget_tokens and loop.trainer.weight_version < MOST_STEPS:
        loop.step(_groups(plan, loop))
        tokens = loop.costs.tokens
        if tokens - points[-1].tokens >= plan.every_tokens or tokens >= plan.budget_tokens:
            points.append(_point(plan, loop, problems))
    return points


def _groups(plan: Plan, loop: PromptLoop) -> int | None:
    """That a control asks for now, so that its samples since the start are those of its run."""
    if not plan.work:
        return None
    step, size = loop.trainer.weight_version, plan.settings.group_size
    due = sum(plan.work[: step + 1]) + plan.work[-1] * max(step + 1 - len(plan.work), 0)
    return max(round((due - loop.costs.samples) / size), 1)


def work_of(points: list[QualityPoint]) -> tuple[int, ...]:
    """Samples of each step of a run, spread evenly between its evaluations."""
    steps = np.array([point.step for point in points])
    samples = np.array([point.extras["samples"] for point in points])
    total = np.interp(np.arange(steps[-1] + 1), steps, samples).round().astype(int)
    return tuple(np.diff(total).tolist())


def _point(plan: Plan, loop: PromptLoop, problems: list[Problem]) -> QualityPoint:
    model: SignsModel = loop.trainer.model
    answers = held_out(
        model, problems, seed=plan.settings.seed, max_new_tokens=plan.settings.max_new_tokens
    )
    costs, solved = loop.costs, answers.solved
    count = np.array([len(problem.numbers) for problem in problems])
    by_count = {
        f"solved_{k}": float(solved[count == k].mean()) for k in COUNTS if (count == k).any()
    }
    return QualityPoint(
        arm=plan.arm,
        seed=plan.settings.seed,
        step=loop.trainer.weight_version,
        tokens=costs.tokens,
        replica_s=costs.rollout_cpu_s,
        wall_s=costs.wall_s,
        quality=float(solved.mean()),
        evaluated=len(problems),
        extras={
            **by_count,
            "mean_length": float(answers.tokens.mean()),
            "truncated_share": float(answers.truncated.mean()),
            "rollout_mean_length": costs.tokens / max(costs.samples, 1),
            "rollout_truncated_share": costs.truncated / max(costs.samples, 1),
            "samples": costs.samples,
            "groups": costs.groups,
            "accepted": costs.accepted,
            "informative": costs.informative,
            "rounds": costs.rounds,
            "prompts": len(loop.visits),
            "update_s": costs.update_cpu_s,
            "decide_s": costs.decide_s,
        },
    )
