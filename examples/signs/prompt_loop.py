"""One GRPO run under a prompt policy, all in one process: choose, roll out, learn, select, update.

Rollouts are sampled in this process, by the model that is trained, at the temperature at which the
engines of the demo sample: token for token the distribution is the same, and a run costs a minute
of one core.  Nothing is stale: every step's samples are of its weights.

A step goes on until the batch has its groups (refill), or the policy has no more to ask for.  A
chosen prompt's samples are drawn in stages, as often as the policy extends its group.  All groups
that were accepted make one update; where weights are used, a sample counts 1 / (its prompt's
inclusion probability), normalised to a mean of 1 over the batch (self-normalised) and clipped.

Costs are honest: every token that was generated counts when it is, whether its group is accepted,
dropped or never completed.  Evaluations are not counted as cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steersman.controller.prompts.chooser import PromptChooser
from steersman.estimators.observation import Floats, Ints, Normaliser
from steersman.examples.signs.grpo import GrpoTrainer, Sample
from steersman.examples.signs.model import SignsModel
from steersman.examples.signs.sampling import Generation, sample
from steersman.examples.signs.task import Problem, make_pool, prompt_tokens, reward
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups

MOST_ROUNDS = 20
"""Of one step; the batch then stays short."""


@dataclass(frozen=True)
class LoopSettings:
    """What is asked of every policy alike."""

    seed: int = 0
    groups: int = 16
    """That a batch wants."""
    group_size: int = 8
    max_new_tokens: int = 384
    pool_size: int = 200
    unsolvable_share: float = 0.2
    max_weight: float = 4.0
    """Of a group in an update, before the mean is brought to 1; 1: weights are not used."""


@dataclass
class Costs:
    """Sums since the run began."""

    tokens: int = 0
    samples: int = 0
    truncated: int = 0
    rollout_cpu_s: float = 0.0
    """Seconds of CPU that rollouts took: one replica's."""
    update_cpu_s: float = 0.0
    decide_s: float = 0.0
    wall_s: float = 0.0
    rounds: int = 0
    groups: int = 0
    accepted: int = 0
    informative: int = 0
    """Of the accepted: with rewards that differ."""


@dataclass
class _Open:
    """A group whose samples are being drawn."""

    group_id: int
    prompt_key: int
    problem: Problem
    max_new_tokens: int
    samples: list[Sample] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Of its samples, within the run."""


class PromptLoop:
    """A run under way."""

    def __init__(self, model: SignsModel, policy: PromptPolicy, settings: LoopSettings) -> None:
        self.settings, self.costs = settings, Costs()
        self.trainer = GrpoTrainer(model, seed=settings.seed)
        pool = make_pool(settings.pool_size, settings.unsolvable_share, settings.seed)
        self.problems = dict(enumerate(pool))
        self.visits: dict[int, int] = {}
        """Groups that were begun of each prompt."""
        self._chooser = PromptChooser(
            policy,
            group_size=settings.group_size,
            max_new_tokens=settings.max_new_tokens,
            normaliser=Normaliser.NONE,
            seed=settings.seed,
        )
        self._chooser.set_pool(list(self.problems))
        self._calls = self._groups = self._numbers = 0

    def step(self, groups_wanted: int | None = None) -> dict[str, float]:
        """One update; returns the trainer's metrics, none if there was nothing to learn from."""
        began_s = time.perf_counter()
        wanted = groups_wanted or self.settings.groups
        number, batch, weights = self.trainer.weight_version, list[list[Sample]](), list[float]()
        for refill in range(MOST_ROUNDS):
            if len(batch) >= wanted:
                break
            accepted, weight = self._round(wanted - len(batch), number, refill)
            if accepted is None:
                break
            batch += accepted
            weights += weight
        metrics = dict[str, float]()
        if any(batch):
            with _Seconds(self.costs, "update_cpu_s"):
                metrics = self._update(batch, np.array(weights))
        else:  # nothing was accepted, nothing is learnt
            self.trainer.weight_version += 1
        self.costs.wall_s += time.perf_counter() - began_s
        return metrics

    def _round(
        self, lacking: int, step: int, refill: int
    ) -> tuple[list[list[Sample]] | None, list[float]]:
        """Groups that go into the batch, and their weights; None: nothing was asked for."""
        began_s = time.perf_counter()
        chosen = self._chooser.choose(lacking, step, step, refill)
        self.costs.decide_s += time.perf_counter() - began_s
        if not len(chosen):
            return None, []
        groups = [
            self._begun(int(key), cap)
            for key, cap in zip(
                chosen.prompt_key.tolist(), chosen.max_new_tokens.tolist(), strict=True
            )
        ]
        self._draw_all(groups, chosen.size, step)
        table = finished(groups, step)
        began_s = time.perf_counter()
        selection = self._chooser.finished(table)
        self.costs.decide_s += time.perf_counter() - began_s
        self.costs.rounds += 1
        self.costs.groups += len(groups)
        self.costs.accepted += int(selection.accepted.sum())
        self.costs.informative += int((selection.accepted & table.informative).sum())
        train = np.split(selection.train, np.cumsum(table.size)[:-1])
        rows = np.flatnonzero(selection.accepted).tolist()
        kept = [
            [s for s, use in zip(groups[row].samples, train[row].tolist(), strict=True) if use]
            for row in rows
        ]
        weight = 1.0 / chosen.inclusion_probability
        if len(selection.weight):
            weight = weight * selection.weight
        return kept, weight[rows].tolist()

    def _begun(self, key: int, cap: int) -> _Open:
        self.visits[key] = self.visits.get(key, 0) + 1
        self._groups += 1
        return _Open(self._groups, key, self.problems[key], cap)

    def _draw_all(self, groups: Sequence[_Open], size: Ints, step: int) -> None:
        """Draw the samples, and those that the policy adds, until it adds none."""
        some, added = list(groups), size.tolist()
        while some:
            self._draw(some, added)
            began_s = time.perf_counter()
            more = self._chooser.extend(finished(some, step)).tolist()
            self.costs.decide_s += time.perf_counter() - began_s
            some = [group for group, count in zip(some, more, strict=True) if count > 0]
            added = [count for count in more if count > 0]

    def _draw(self, groups: Sequence[_Open], counts: Sequence[int]) -> None:
        """So many more samples of each group."""
        rows = [g for g, count in zip(groups, counts, strict=True) for _ in range(count)]
        for cap in sorted({group.max_new_tokens for group in rows}):
            alike = [group for group in rows if group.max_new_tokens == cap]
            prompts = [prompt_tokens(group.problem) for group in alike]
            for group, prompt, answer in zip(
                alike, prompts, self._generate(prompts, cap), strict=True
            ):
                earned = reward(group.problem, answer.tokens, answer.finished)
                logprobs = np.array(answer.logprobs, dtype=np.float32)
                group.samples.append(Sample(prompt, answer.tokens, logprobs, earned))
                group.truncated.append(not answer.finished)
                group.numbers.append(self._numbers)
                self._numbers += 1

    def _generate(self, prompts: Sequence[Sequence[int]], cap: int) -> list[Generation]:
        """The only way to a sample: here it is paid for."""
        self._calls += 1
        seed = int(np.random.SeedSequence((self.settings.seed, self._calls)).generate_state(1)[0])
        with _Seconds(self.costs, "rollout_cpu_s"):
            answers = sample(self.trainer.model, prompts, max_new_tokens=cap, seed=seed)
        self.costs.samples += len(answers)
        self.costs.tokens += sum(len(answer.tokens) for answer in answers)
        self.costs.truncated += sum(not answer.finished for answer in answers)
        return answers

    def _update(self, batch: Sequence[Sequence[Sample]], weight: Floats) -> dict[str, float]:
        if self.settings.max_weight <= 1.0:
            weight = np.ones(len(batch))
        weight = np.minimum(weight / weight.mean(), self.settings.max_weight)
        own = (weight / weight.mean()).tolist()
        return self.trainer.update(
            [
                [replace(s, weight=w) for s in group]
                for group, w in zip(batch, own, strict=True)
                if group
            ]
        )


def finished(groups: Sequence[_Open], step: int) -> FinishedGroups:
    """As a policy is shown them."""
    sizes = [len(group.samples) for group in groups]
    samples = [s for group in groups for s in group.samples]
    return FinishedGroups(
        group_id=np.array([group.group_id for group in groups]),
        prompt_key=np.array([group.prompt_key for group in groups]),
        weight_version=np.full(len(groups), step),
        group_row=np.repeat(np.arange(len(groups)), sizes),
        trajectory_id=np.array([number for group in groups for number in group.numbers]),
        reward=np.array([s.reward for s in samples]),
        tokens=np.array([len(s.response) for s in samples]),
        truncated=np.array([cut for group in groups for cut in group.truncated]),
        step=step,
        weight_version_now=step,
        mean_logprob=np.array([float(s.behaviour_logprobs.mean()) for s in samples]),
    )


class _Seconds:
    """Adds the CPU seconds of a block to a cost."""

    def __init__(self, costs: Costs, name: str) -> None:
        self._costs, self._name = costs, name

    def __enter__(self) -> None:
        self._began_s = time.process_time()

    def __exit__(self, *_: object) -> None:
        spent_s = time.process_time() - self._began_s
        setattr(self._costs, self._name, getattr(self._costs, self._name) + spent_s)
