"""One group, from its prompt to the rows that are trained on.

Samples are asked for, scored, told to the gateway and shown to the prompt policy; as long as that
wants more of them, once more.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.controller.config import Config
from steersman.controller.sidecar.prompts.supply import Answers, Plan, Verdict
from steersman.controller.sidecar.trl import samples
from steersman.controller.sidecar.trl.client import Client
from steersman.controller.sidecar.trl.dataset import PromptData
from steersman.controller.sidecar.trl.samples import Answer, RolloutSample
from steersman.controller.sidecar.trl.scoring import Rewards
from steersman.controller.sidecar.trl.settings import RolloutSettings
from steersman.estimators.observation import Floats
from steersman.mechanisms.execution import mixed_seed


@dataclass(slots=True)
class Flight:
    """A group under way."""

    plan: Plan
    weight_version: int
    """When it was begun."""
    answers: list[Answer] = field(default_factory=list)
    completions: list[Any] = field(default_factory=list)
    scores: dict[str, Floats] = field(default_factory=dict)
    rewards: Floats = field(default_factory=lambda: np.zeros(0))
    size: int = 0
    """Samples that it has or waits for."""

    def take(
        self,
        new: Sequence[Answer],
        completions: Sequence[Any],
        scores: Mapping[str, Floats],
        rewards: Floats,
    ) -> None:
        """More samples, with what they earned."""
        self.answers += new
        self.completions += completions
        self.rewards = np.concatenate((self.rewards, rewards))
        for name, column in scores.items():
            known = self.scores.get(name, np.zeros(0))
            self.scores[name] = np.concatenate((known, column))

    def shown(self) -> Answers:
        """As the prompt policy sees it."""
        return Answers(
            number=self.plan.number,
            rewards=self.rewards.tolist(),
            tokens=[len(answer.token_ids) for answer in self.answers],
            truncated=[answer.truncated for answer in self.answers],
            mean_logprob=[answer.mean_logprob for answer in self.answers],
            weight_version=min(answer.oldest_version for answer in self.answers),
        )


@dataclass
class Tally:
    """What happened, since the last report."""

    counts: Counter[str] = field(default_factory=Counter)
    reward: float = 0.0
    """Sum over all samples that were rewarded, whatever became of their groups."""


class GroupRoller:
    """What all groups of a run have in common."""

    def __init__(
        self,
        settings: RolloutSettings,
        config: Config,
        data: PromptData,
        rewards: Rewards,
        *,
        weigh_groups: bool,
        version: Callable[[], int],
        judge: Callable[[Answers], Verdict],
    ) -> None:
        """`version`: of the live weights; `judge`: what becomes of a group."""
        self._settings, self._config, self._data = settings, config, data
        self._rewards, self._weigh_groups = rewards, weigh_groups
        self._version, self._judge = version, judge
        self.model = ""
        """Name by which the engines serve the model; to be set before the first group."""
        self.tally = Tally()

    async def roll(self, client: Client, flight: Flight) -> list[RolloutSample] | None:
        """The group's rows; None: it was filtered."""
        plan, lacking = flight.plan, flight.plan.size
        row = self._data.row(plan.prompt_id)
        while True:
            new = await self._ask(client, flight, lacking)
            completions = [self._data.answer(plan.prompt_id, a.token_ids) for a in new]
            ids = [answer.token_ids for answer in new]
            scores, rewards = await self._rewards.score(row, completions, ids)
            flight.take(new, completions, scores, rewards)
            self._count(new, rewards, client.endpoints.gateway)
            await client.tell_rewards(_told(new, rewards))
            verdict = self._judge(flight.shown())
            if not verdict.more:
                break
            lacking = verdict.more
            flight.size += lacking
        if not verdict.accepted:
            return None
        return samples.rows(
            plan,
            flight.answers,
            flight.scores,
            flight.rewards,
            verdict,
            prompt=row["prompt"],
            prompt_tokens=self._data.tokens(plan.prompt_id),
            completions=flight.completions,
            normaliser=self._config.normaliser,
            weight_version=self._version(),
            weigh_groups=self._weigh_groups,
        )

    async def _ask(self, client: Client, flight: Flight, n: int) -> list[Answer]:
        plan, seed, aborted = flight.plan, self._config.seed, True
        body = self._settings.body(
            model=self.model,
            prompt=self._data.tokens(plan.prompt_id),
            n=n,
            max_tokens=plan.max_new_tokens,
            # engines are started with one seed: without one of its own, a prompt that two of them
            # answer would get the same samples twice
            seed=mixed_seed(seed, plan.number, len(flight.answers)),
        )
        while aborted:  # by a pause: what comes then is under new weights
            version = self._version()
            told = {
                "prompt": plan.prompt_id,
                "group": f"trl-{seed}-{plan.number}",
                "step": version,
                "weight_version": version,
            }
            reply = await client.complete(body, told)
            aborted = samples.was_aborted(reply.body)
        return samples.answers_of(reply.body, version, reply.at)

    def _count(self, new: Sequence[Answer], rewards: Floats, gateway: str) -> None:
        known = rewards[np.isfinite(rewards)]
        self.tally.reward += float(known.sum())
        self.tally.counts.update(
            samples=len(new),
            rewarded=len(known),
            tokens=sum(len(answer.token_ids) for answer in new),
            direct=sum(answer.steered is None for answer in new) if gateway else 0,
        )


def _told(new: Sequence[Answer], rewards: Floats) -> list[tuple[int, float]]:
    """By the gateway's trajectory."""
    pairs = zip(new, rewards.tolist(), strict=True)
    return [
        (int(answer.steered["trajectory_id"]), reward)
        for answer, reward in pairs
        if answer.steered is not None and np.isfinite(reward)
    ]
