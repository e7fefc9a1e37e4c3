"""One reinforcement run: rollouts by a fleet under one policy, GRPO here, weights back each step.

Every step draws prompts from the pool, awaits their groups (and those parked earlier), scores them
exactly, checks the engines' log-probabilities against the trainer's, updates, and pushes the new
weights with probes.  After the last step what is still parked is drained and trained on, so every
policy does all the work it was asked for, and its time includes that.

Prompts are dealt from the pool, the same to every placement policy; or, where an arm names a prompt
policy, the session lets that one choose them, extend their groups and filter them, and gives each
group the weight that the update takes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.results import Group, Prompt, Trajectory
from steersman.controller.session import RolloutSession
from steersman.controller.trace.writer import TraceWriter
from steersman.examples.signs.grpo import GrpoTrainer, Sample, evaluate
from steersman.examples.signs.model import load_hf, named_tensors
from steersman.examples.signs.task import (
    EOS_ID,
    deal_prompts,
    make_evaluation_pool,
    make_pool,
    prompt_tokens,
    reward,
)
from steersman.mechanisms.fleet import Fleet, LogprobProbe, Sampling

HELD_OUT_PROBLEMS = 512
"""Standard error of a share: 0.022."""
CHECKED_TRAJECTORIES = 16
"""Trajectories per step whose log-probabilities are recomputed: 1/8 of a step, 2 % of its time."""


@dataclass(frozen=True)
class RunSettings:
    """What is asked of every policy alike."""

    steps: int
    seed: int = 0
    prompts_per_step: int = 16
    group_size: int = 8
    max_new_tokens: int = 512
    pool_size: int = 200
    unsolvable_share: float = 0.2
    evaluate_every: int = 0
    """Steps between evaluations; 0: only before the first step and after the last."""


@dataclass(frozen=True)
class Arm:
    """What is compared."""

    name: str
    overrides: tuple[str, ...]
    """Of the configuration: its policies and their options."""
    dealt: bool = True
    """Prompts are dealt; otherwise the configuration's prompt policy chooses them."""


@dataclass
class StepReport:
    """One step as the trainer saw it."""

    step: int
    seconds: float
    rollout_s: float
    reward: float
    tokens: int
    """Of all answers, those of groups that were filtered included."""
    groups: int
    logprob_difference: float
    """Largest |log p(engine) - log p(trainer)| among the tokens that were recomputed."""
    degenerate_share: float
    """Share of the groups whose rewards are all equal: they teach nothing."""


@dataclass
class RunReport:
    """One policy's run."""

    arm: str
    steps: list[StepReport] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    on_time_lengths: list[int] = field(default_factory=list)
    """Lengths of trajectories delivered in the step that asked for them."""
    held_out_first: float = 0.0
    """Share of held-out problems solved before the first step."""
    held_out_last: float = 0.0
    total_s: float = 0.0
    """All steps and the final drain, without evaluations."""
    filtered_tokens: int = 0
    """Of answers that a prompt policy did not let through to the trainer."""
    lost: int = 0
    doubled: int = 0
    migrated: int = 0
    deferred: int = 0


Progress = Callable[[StepReport], None]


async def reinforce(
    fleet: Fleet,
    arm: Arm,
    start: Path,
    first_version: int,
    settings: RunSettings,
    trace_path: Path,
    progress: Progress,
    config_file: Path | None = None,
) -> RunReport:
    """Improve the model in `start` under the arm's policies; the fleet first gets those very
    weights.

    `first_version` must be above any version the fleet has seen.  `config_file` is what the
    overrides lie over.
    """
    config = load_config(config_file, [*arm.overrides, f"seed={settings.seed}"], environ={})
    trainer = GrpoTrainer(load_hf(start), seed=settings.seed)
    session = RolloutSession(
        fleet,
        Controller.from_config(config),
        trace=TraceWriter(trace_path),
        weight_version=first_version - 1,
    )
    run = _Run(session, trainer, settings, RunReport(arm.name), first_version, arm.dealt)
    async with session:
        await session.push_weights(named_tensors(trainer.model), first_version)
        run.report.held_out_first = await run.held_out()
        for step in range(settings.steps):
            progress(await run.step(step))
            if settings.evaluate_every and (step + 1) % settings.evaluate_every == 0:
                await run.held_out()
        await run.finish()
        run.report.held_out_last = await run.held_out()
        counts = session.counts()
        run.report.migrated, run.report.deferred = counts.moves, counts.deferrals
    return run.report


class _Run:
    """A run under way."""

    def __init__(
        self,
        session: RolloutSession,
        trainer: GrpoTrainer,
        settings: RunSettings,
        report: RunReport,
        first_version: int,
        dealt: bool,
    ) -> None:
        self.report, self._dealt = report, dealt
        self._session, self._trainer, self._settings = session, trainer, settings
        self._first_version = first_version
        pool = make_pool(settings.pool_size, settings.unsolvable_share, settings.seed)
        self._problems = {f"signs-{i}": problem for i, problem in enumerate(pool)}
        hands = deal_prompts(pool, settings.steps, settings.prompts_per_step, settings.seed)
        self._order = [[f"signs-{i}" for i in hand] for hand in hands]
        if not dealt:
            session.set_pool(
                [Prompt(name, prompt_tokens(p)) for name, p in self._problems.items()],
                settings.group_size,
                max_new_tokens=settings.max_new_tokens,
            )
        self._owed: Counter[tuple[str, int]] = Counter()
        self._written = 0
        """Tokens of this step's answers that were scored on their way."""
        self._sampling = Sampling(stop_token_ids=(EOS_ID,), seed=settings.seed)

    async def step(self, step: int) -> StepReport:
        """Roll out, learn, push."""
        started_s, self._written = time.monotonic(), 0
        groups = await (self._deal(step) if self._dealt else self._choose())
        rollout_s = time.monotonic() - started_s
        delivered = sum(len(t.token_ids) for g in groups for t in g.trajectories)
        self.report.filtered_tokens += max(self._written - delivered, 0)
        difference = await asyncio.to_thread(self._logprob_difference, groups)
        learned = await self._learn(groups)
        report = StepReport(
            step=step,
            seconds=time.monotonic() - started_s,
            rollout_s=rollout_s,
            reward=learned["mean_reward"],
            tokens=max(self._written, delivered),
            groups=len(groups),
            logprob_difference=difference,
            degenerate_share=learned["degenerate_share"],
        )
        self.report.steps.append(report)
        self.report.total_s += time.monotonic() - started_s
        return report

    async def _deal(self, step: int) -> list[Group]:
        """The step's groups of the prompts that are dealt, and those parked earlier."""
        names = self._order[step]
        for name in names:
            self._owed.update((name, slot) for slot in range(self._settings.group_size))
        return await self._session.rollout(
            [Prompt(name, prompt_tokens(self._problems[name])) for name in names],
            self._settings.group_size,
            max_new_tokens=self._settings.max_new_tokens,
            sampling=self._sampling,
        )

    async def _choose(self) -> list[Group]:
        """The step's groups of prompts that the policy chose."""

        def score(prompt: Prompt, trajectories: Sequence[Trajectory]) -> list[float]:
            self._written += sum(len(t.token_ids) for t in trajectories)
            return [self._earned(t) for t in trajectories]

        return await self._session.choose(
            self._settings.prompts_per_step, scorer=score, sampling=self._sampling
        )

    async def finish(self) -> None:
        """Train on what was parked, and see that nothing is owed or came twice."""
        started_s = time.monotonic()
        groups = await self._session.drain()
        if groups:
            await self._learn(groups)
        self.report.total_s += time.monotonic() - started_s
        counts = Counter(t.trajectory_id for t in self.report.trajectories)
        self.report.doubled = counts.total() - len(counts)
        self.report.lost = self._session.counts().unfinished
        if self._dealt:  # what was asked for is known
            self.report.lost = sum(count for count in self._owed.values() if count > 0)
            self.report.doubled = sum(-count for count in self._owed.values() if count < 0)

    async def held_out(self) -> float:
        """Share of problems solved that no training touches; sampled here, not by the fleet."""
        started_s = time.monotonic()
        problems = make_evaluation_pool(HELD_OUT_PROBLEMS, self._settings.seed)
        solved = await asyncio.to_thread(
            evaluate, self._trainer.model, problems, seed=self._settings.seed
        )
        self._session.quality(
            solved,
            evaluated=len(problems),
            metric="share of held-out problems solved",
            seconds=time.monotonic() - started_s,
        )
        return solved

    async def _learn(self, groups: list[Group]) -> dict[str, float]:
        samples = [own for group in groups if (own := self._samples(group))]
        for group in groups:
            self._book(group)
        if not samples:
            return {"mean_reward": float("nan"), "degenerate_share": float("nan")}
        metrics = await asyncio.to_thread(self._trainer.update, samples)
        probes = await asyncio.to_thread(self._probes, groups)
        version = self._first_version + self._trainer.weight_version
        await self._session.push_weights(named_tensors(self._trainer.model), version, probes)
        return metrics

    def _samples(self, group: Group) -> list[Sample]:
        """What of the group is trained on."""
        prompt = prompt_tokens(self._problems[group.prompt_id])
        rewards = group.rewards or [self._earned(t) for t in group.trajectories]
        if not group.rewards:  # the session does not know them yet
            for t, earned in zip(group.trajectories, rewards, strict=True):
                self._session.reward(t.trajectory_id, earned)
        train = group.train or [True] * len(rewards)
        return [
            Sample(
                prompt=prompt,
                response=t.token_ids,
                behaviour_logprobs=np.array(t.logprobs, dtype=np.float32),
                reward=earned,
                weight=t.weight * group.weight,
            )
            for t, earned, use in zip(group.trajectories, rewards, train, strict=True)
            if use
        ]

    def _earned(self, trajectory: Trajectory) -> float:
        problem = self._problems[trajectory.prompt_id]
        return reward(problem, trajectory.token_ids, trajectory.finished)

    def _book(self, group: Group) -> None:
        for trajectory in group.trajectories:
            self._owed[trajectory.prompt_id, trajectory.slot] -= 1
            self.report.trajectories.append(trajectory)
            if group.admitted_step == group.delivered_step:
                self.report.on_time_lengths.append(len(trajectory.token_ids))

    def _logprob_difference(self, groups: list[Group]) -> float:
        """Largest difference between engine and trainer on tokens of the present weights."""
        current = self._session.weight_version
        chosen = [
            t
            for group in groups
            for t in group.trajectories
            if t.token_ids and all(s.weight_version == current for s in t.segments)
        ][:CHECKED_TRAJECTORIES]
        prompts = [prompt_tokens(self._problems[t.prompt_id]) for t in chosen]
        ours = self._trainer.logprobs(
            [prompt + t.token_ids for prompt, t in zip(prompts, chosen, strict=True)],
            [len(prompt) for prompt in prompts],
        )
        return max(
            (
                float(np.abs(mine - np.array(t.logprobs, dtype=np.float32)).max())
                for mine, t in zip(ours, chosen, strict=True)
            ),
            default=0.0,
        )

    def _probes(self, groups: list[Group]) -> list[LogprobProbe]:
        """The longest trajectory of the step, scored by the new weights."""
        longest = max(
            (t for group in groups for t in group.trajectories), key=lambda t: len(t.token_ids)
        )
        sequence = prompt_tokens(self._problems[longest.prompt_id]) + longest.token_ids
        (logprobs,) = self._trainer.logprobs([sequence], [1])
        return [LogprobProbe(sequence, logprobs.tolist())]
