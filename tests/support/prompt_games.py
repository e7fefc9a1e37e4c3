"""Prompt policies on prompts of known pass rates, without a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import Candidates, FinishedGroups, PromptRequest, Selection

LOGISTIC_VARIANCE = np.pi**2 / 3
"""Of the logit of a pass rate any of which is as likely as any other."""


def candidates(keys: np.ndarray) -> Candidates:
    """Of which nothing is known."""
    c = len(keys)
    return Candidates(keys, np.zeros(c), np.full(c, LOGISTIC_VARIANCE), np.full(c, np.nan), 8)


def request(
    groups_wanted: int = 4,
    offered: int = 16,
    group_size: int = 8,
    refill: int = 0,
    step: int = 0,
    max_new_tokens: int = 1000,
) -> PromptRequest:
    """Prompts 0, 1, 2 and so on are offered."""
    return PromptRequest(
        step=step,
        weight_version=step,
        groups_wanted=groups_wanted,
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        candidates=replace(candidates(np.arange(offered)), group_size=group_size),
        refill=refill,
    )


def finished(
    rewards: Sequence[Sequence[float] | np.ndarray], version: int = 0, first_id: int = 0
) -> FinishedGroups:
    """A group of each list of rewards."""
    sizes = [len(own) for own in rewards]
    n, ids = sum(sizes), first_id + np.arange(len(rewards))
    return FinishedGroups(
        group_id=ids,
        prompt_key=ids,
        weight_version=np.full(len(rewards), version),
        group_row=np.repeat(np.arange(len(rewards)), sizes),
        trajectory_id=np.arange(n),
        reward=np.concatenate([np.asarray(own, dtype=np.float64) for own in rewards]),
        tokens=np.full(n, 10),
        truncated=np.zeros(n, dtype=np.bool_),
        step=version,
        weight_version_now=version,
    )


@dataclass
class Batch:
    """What a policy did for one batch."""

    samples: int = 0
    accepted: int = 0
    replayed: int = 0
    informative: int = 0
    rounds: int = 0


def fill(
    policy: PromptPolicy,
    rates: np.ndarray,
    groups_wanted: int,
    group_size: int = 8,
    seed: int = 0,
    step: int = 0,
) -> Batch:
    """One batch; `rates` (p,) are the prompts' pass rates, offered in this order, each once."""
    rng, batch = np.random.default_rng(seed), Batch()
    place = 0
    while batch.accepted + batch.replayed < groups_wanted:
        lacking = groups_wanted - batch.accepted - batch.replayed
        asked = request(lacking, len(rates) - place, group_size, batch.rounds, step)
        choice = policy.choose(asked, rng)
        if not len(choice):
            break
        own = rates[place + choice.row]
        place += int(choice.row.max()) + 1
        rewards = [(rng.random(n) < p).astype(float) for n, p in zip(choice.size, own, strict=True)]
        first = 1000 * step + place
        while (more := policy.extend(finished(rewards, step, first), rng)).any():
            rewards = [
                np.append(got, rng.random(n) < p)
                for got, n, p in zip(rewards, more, own, strict=True)
            ]
        groups = finished(rewards, step, first)
        policy.learn(groups)
        taken = policy.select(groups, rng)
        batch.samples += len(groups.group_row)
        batch.accepted += int(taken.accepted.sum())
        batch.replayed += len(taken.replayed)
        batch.informative += int((taken.accepted & groups.informative).sum())
        batch.rounds += 1
    return batch


def trained(groups: FinishedGroups, selection: Selection) -> list[list[float]]:
    """Rewards that are trained on, by group."""
    rows = [groups.group_row == row for row in range(len(groups))]
    return [sorted(groups.reward[own & selection.train].tolist()) for own in rows]
