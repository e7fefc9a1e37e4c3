"""What goes in and what comes back: prompts, trajectories, groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from steersman.estimators.lifecycle import CorrectnessClass, Disposition
from steersman.mechanisms.execution import Segment


@dataclass(frozen=True, slots=True)
class Prompt:
    """One training prompt, already tokenized."""

    prompt_id: str
    """Its name; the same prompt in a later step should have the same one."""
    token_ids: Sequence[int]
    features: tuple[float, ...] = ()
    """What is known of it beforehand and may tell its length, as numbers of about unit size
    (difficulty, task type as 0/1 ...); equally many for every prompt of a run."""

    @property
    def key(self) -> int:
        """Stable 63-bit hash of the name, for arrays."""
        return int.from_bytes(blake2b(self.prompt_id.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished sample, with everything a trainer needs to use it rightly."""

    trajectory_id: int
    prompt_id: str
    slot: int
    """0 .. group size - 1."""
    token_ids: list[int]
    """What was generated, the stop token included."""
    logprobs: list[float]
    """Behaviour log-probability of each token, under the weights that wrote it (temperature 1)."""
    segments: list[Segment]
    disposition: Disposition
    correctness: CorrectnessClass
    weight: float
    """1, unless a coin of known probability might have stopped it: then the inverse of the
    probability with which it was spared, or 0 if it was not.  Sums of weight times anything are
    unbiased; means divide by the number of trajectories, or by the sum of weights."""
    lag: int
    """Trainer version at delivery minus the oldest version that wrote a token."""
    moves: int
    deferrals: int

    @property
    def finished(self) -> bool:
        """Whether the model ended it by itself."""
        return self.disposition is Disposition.FINISHED


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """On what terms a group was admitted."""

    inclusion_probability: float = 1.0
    """With which the prompt policy chose the prompt, in (0, 1]."""
    weight: float = 1.0
    """Inverse of the inclusion probability, over its mean among those chosen at once."""
    policy: str = ""
    """Prompt policy that chose it; empty: the caller did."""


CHOSEN_BY_THE_CALLER = GroupTerms()


@dataclass(frozen=True, slots=True)
class Group:
    """All samples of one prompt: delivered whole, or not yet."""

    group_id: int
    prompt_id: str
    admitted_step: int
    delivered_step: int
    trajectories: tuple[Trajectory, ...]
    terms: GroupTerms = CHOSEN_BY_THE_CALLER
    rewards: tuple[float, ...] = ()
    """Of each trajectory, where a scorer was given; NaN: it did not know."""
    train: tuple[bool, ...] = ()
    """Which trajectories the prompt policy wants trained on; empty: all."""
    weight: float = 1.0
    """Of the group in means over a batch, which divide by the sum of weights: inverse of the
    probability that its prompt was chosen and that no coin dropped the group."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The books: `queued == ended + unfinished` always holds."""

    queued: int
    ended: int
    parked: int
    answered: int
    """Ended with an answer for the trainer."""
    dispositions: dict[str, int]
    moves: int
    deferrals: int

    @property
    def unfinished(self) -> int:
        """Trajectories that have not ended."""
        return self.queued - self.ended
