"""Groups of a round: what was drawn for them so far, as policies and the simulator see it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from steersman.controller.replay.workload import Asked
from steersman.controller.tournament._rollouts import Round
from steersman.controller.tournament.sample_banks import SampleBank
from steersman.estimators.observation import Floats, Ints
from steersman.policies.prompting import FinishedGroups

CUT_REWARD = 0.0
"""Of a sample that a policy's cap cuts: it has no answer."""


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass
class Group:
    """A prompt that is being rolled out; the columns are of its n samples so far."""

    group_id: int
    key: int
    cap: int
    seed: tuple[int, int, int]
    """Of all its samples: run, prompt, visit."""
    prompt_tokens: int = 0
    stage: Ints = field(default_factory=_no_ints)
    """Extensions before the sample was asked for."""
    length: Ints = field(default_factory=_no_ints)
    reward: Floats = field(default_factory=lambda: np.zeros(0))
    trajectory_id: Ints = field(default_factory=_no_ints)

    def draw(self, ids: Ints, stage: int, bank: SampleBank, weight_version: int) -> None:
        """A sample more for each of the ids."""
        have, rng = len(self.length), np.random.default_rng(self.seed)
        drawn = bank.draw(self.key, have + len(ids), weight_version, rng)
        length = drawn.length[have:]
        reward = np.where(length > self.cap, CUT_REWARD, drawn.reward[have:])
        self.prompt_tokens = drawn.prompt_tokens
        self.stage = np.concatenate((self.stage, np.full(len(ids), stage)))
        self.length = np.concatenate((self.length, np.minimum(length, self.cap)))
        self.reward = np.concatenate((self.reward, reward))
        self.trajectory_id = np.concatenate((self.trajectory_id, ids))


def finished(groups: Sequence[Group], version: int) -> FinishedGroups:
    """As a policy is shown them, all written by the weights of that version."""
    length = np.concatenate([group.length for group in groups])
    sizes = [len(group.length) for group in groups]
    return FinishedGroups(
        group_id=np.array([group.group_id for group in groups]),
        prompt_key=np.array([group.key for group in groups]),
        weight_version=np.full(len(groups), version),
        group_row=np.repeat(np.arange(len(groups)), sizes),
        trajectory_id=np.concatenate([group.trajectory_id for group in groups]),
        reward=np.concatenate([group.reward for group in groups]),
        tokens=length,
        truncated=length >= np.repeat([group.cap for group in groups], sizes),
        step=version,
        weight_version_now=version,
    )


def as_round(groups: Sequence[Group], number: int, step: int) -> Round:
    """All that was asked for, to be timed."""
    sizes = [len(group.length) for group in groups]
    length = np.concatenate([group.length for group in groups])
    asked = Asked.plain(
        step=number,
        prompt_key=np.array([group.key for group in groups]),
        group_row=np.repeat(np.arange(len(groups)), sizes),
        prompt_tokens=np.repeat([group.prompt_tokens for group in groups], sizes),
        length=length,
        max_new_tokens=np.repeat([group.cap for group in groups], sizes),
        reward=np.concatenate([group.reward for group in groups]),
    )
    return Round(step, asked, np.concatenate([group.stage for group in groups]))
