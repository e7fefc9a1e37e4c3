"""A prompt policy in the world whose pass rates drift (`success_world`), whole steps of it."""

from dataclasses import dataclass, field

import numpy as np
from support.success_world import SuccessWorld

from steersman.controller.prompts.chooser import Chosen, PromptChooser
from steersman.estimators.observation import Normaliser
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups

SOLVED, UNLEARNED = 0.95, 0.8
"""A prompt that passed more often and now passes less often has regressed."""
LONG_AGO = 60
WARM_UP = 20
"""Steps in which most prompts are seen for the first time."""
TIME_TO_FIND = 25


@dataclass
class DriftGame:
    """What happened."""

    expected: list[float] = field(default_factory=list)
    """Per step: probability that a whole group of a prompt that was chosen is informative."""
    chosen: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    """Groups that went to training."""
    samples: list[int] = field(default_factory=list)
    stale: list[float] = field(default_factory=list)
    """Per step: share of the prompts with a pass rate of 0.2 to 0.8 unvisited for 60 steps."""
    found_after: list[float] = field(default_factory=list)
    """Steps from a regression to the next visit; inf: never."""
    longest_wait: int = 0

    @property
    def yield_(self) -> float:
        """Of what is rolled out at selection."""
        return float(np.mean(self.expected[WARM_UP:]))

    @property
    def taken_share(self) -> float:
        """Groups trained on over groups chosen, after probes and filter."""
        return sum(self.taken[WARM_UP:]) / sum(self.chosen[WARM_UP:])

    @property
    def stale_share(self) -> float:
        """On average, once it can be."""
        return float(np.mean(self.stale[LONG_AGO + WARM_UP :]))


def play(
    policy: PromptPolicy,
    seed: int,
    group_size: int = 16,
    prompts: int = 3000,
    wanted: int = 128,
    steps: int = 300,
    normaliser: Normaliser = Normaliser.STD,
) -> DriftGame:
    """So many steps."""
    world = SuccessWorld(seed, group_size, prompts, steps)
    chooser = PromptChooser(
        policy, group_size=group_size, max_new_tokens=100, normaliser=normaliser, seed=seed
    )
    chooser.set_pool(world.keys.tolist())
    row_of = {key: row for row, key in enumerate(world.keys.tolist())}
    visited, solved = np.zeros(prompts, dtype=np.int64), np.zeros(prompts, dtype=np.bool_)
    regressed: dict[int, int] = {}
    game = DriftGame()
    for step in range(steps):
        rate = pass_rate(world)
        solved |= rate >= SOLVED
        for row in np.flatnonzero(solved & (rate < UNLEARNED)).tolist():
            regressed.setdefault(row, step)
        solved &= rate >= UNLEARNED
        for row in [row for row in regressed if rate[row] >= SOLVED]:
            del regressed[row]
        rows = _step(chooser, step, wanted, rate, row_of, world.rng, game, group_size)
        game.longest_wait = max(game.longest_wait, int((step - visited).max()))
        visited[rows] = step
        game.found_after += [step - regressed.pop(row) for row in {*rows} & {*regressed}]
        teaches = (rate > 0.2) & (rate < 0.8)
        game.stale.append(float((step - visited[teaches] > LONG_AGO).mean()))
        world.advance()
    game.found_after += [np.inf for since in regressed.values() if since < steps - TIME_TO_FIND]
    return game


def pass_rate(world: SuccessWorld) -> np.ndarray:
    """(prompts,) at the present step."""
    logit = world.base + world.slope * world.skill[world.step] + world.walk
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def _step(
    chooser: PromptChooser,
    step: int,
    wanted: int,
    rate: np.ndarray,
    row_of: dict[int, int],
    rng: np.random.Generator,
    game: DriftGame,
    group_size: int,
) -> list[int]:
    """One batch; returns the prompts that were rolled out."""
    rows: list[int] = []
    taken = samples = 0
    for refill in range(10):
        if taken >= wanted:
            break
        chosen = chooser.choose(wanted - taken, step, step, refill)
        if not len(chosen):
            break
        own = [row_of[int(prompt_id)] for prompt_id in chosen.prompt_id]
        groups = rolled_out(chooser, chosen, rate[own], step, 1000 * (10 * step + refill), rng)
        taken += int(chooser.finished(groups).accepted.sum())
        samples += len(groups.reward)
        rows += own
    game.expected.append(
        float((1 - rate[rows] ** group_size - (1 - rate[rows]) ** group_size).mean())
    )
    game.chosen.append(len(rows))
    game.taken.append(taken)
    game.samples.append(samples)
    return rows


def rolled_out(
    chooser: PromptChooser,
    chosen: Chosen,
    rate: np.ndarray,
    step: int,
    first_id: int,
    rng: np.random.Generator,
) -> FinishedGroups:
    """The chosen prompts' groups, extended as far as the policy wants."""
    rewards: list[np.ndarray] = [np.zeros(0)] * len(chosen)
    more = chosen.size
    while more.any():
        rewards = [
            np.append(own, rng.random(n) < p) for own, n, p in zip(rewards, more, rate, strict=True)
        ]
        size = [len(own) for own in rewards]
        groups = FinishedGroups(
            group_id=first_id + np.arange(len(size)),
            prompt_key=chosen.prompt_key,
            weight_version=np.full(len(size), step),
            group_row=np.repeat(np.arange(len(size)), size),
            trajectory_id=np.arange(sum(size)),
            reward=np.concatenate(rewards),
            tokens=np.full(sum(size), 100),
            truncated=np.zeros(sum(size), dtype=np.bool_),
            step=step,
            weight_version_now=step,
        )
        more = chooser.extend(groups)
    return groups
