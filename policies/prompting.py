"""What a prompt policy is asked and what it answers, as arrays.

A step goes through four questions: which prompts (`choose`), whether a group whose samples have
ended gets more of them (`extend`), what was learned (`learn`), and which complete groups make up
the batch (`select`); as long as the batch lacks groups, the first is asked again.

Every choice carries its inclusion probability: the chance, before the draw, that this candidate is
among those chosen.  Its inverse is the weight that makes an estimate over the chosen prompts one
over all candidates (self-normalised, where it is used).  0 < probability <= 1; of prompts left out
nothing needs to be known.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.logistic import Logits, degenerate_probability
from steersman.estimators.observation import Bools, Floats, Ints, Normaliser


@dataclass(frozen=True)
class Candidates:
    """c prompts that the trainer could ask for now, in the order of its data loader.

    What follows from the logits is computed when it is first asked for: of a million candidates a
    policy looks at few.
    """

    prompt_key: Ints
    logit_mean: Floats
    logit_variance: Floats
    """(c,) what is believed of the logit of the probability that a new sample passes: Gaussian."""
    mean_tokens: Floats
    """(c,) expected length of a sample; NaN: not known."""
    group_size: int
    """Samples of a group by the trainer's configuration."""
    waited: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(c,) steps since the prompt was last rolled out, or since it could be for the first time;
    (0,): not known."""

    def __len__(self) -> int:
        return len(self.prompt_key)

    @cached_property
    def pass_probability(self) -> Floats:
        """(c,) expected probability that a new sample passes."""
        return self._pass_moments[0]

    @cached_property
    def pass_deviation(self) -> Floats:
        """(c,) standard deviation of that probability: what is not known of the prompt."""
        return np.sqrt(self._pass_moments[1])

    @cached_property
    def degenerate_probability(self) -> Floats:
        """(c,) of a group of the trainer's size: all of its samples pass, or all fail."""
        size = np.full(len(self), float(self.group_size))
        return degenerate_probability(self.logit_mean, self.logit_variance, size)

    @cached_property
    def _pass_moments(self) -> tuple[Floats, Floats]:
        return Logits.gaussian(self.logit_mean, self.logit_variance).pass_moments()


@dataclass(frozen=True)
class PromptRequest:
    """What the trainer needs."""

    step: int
    weight_version: int
    groups_wanted: int
    """That the batch still lacks."""
    group_size: int
    """Samples of a group by the trainer's configuration."""
    max_new_tokens: int
    """Token cap by the trainer's configuration."""
    candidates: Candidates
    normaliser: Normaliser = Normaliser.STD
    refill: int = 0
    """Times `choose` was asked before in this step."""
    selects: bool = True
    """Whether the trainer lets the policy extend and select; one that does not takes whole groups,
    as many as it wants, and trains on all of them."""
    policy_kl: float | None = None
    """KL divergence between the newest weights and the version before, if the trainer told it."""


@dataclass(frozen=True)
class PromptChoice:
    """m prompts to roll out."""

    row: Ints
    """(m,) rows of the candidates, each at most once."""
    size: Ints
    """(m,) samples of each, >= 1."""
    max_new_tokens: Ints
    """(m,) token cap of each, >= 1."""
    inclusion_probability: Floats
    """(m,) in (0, 1]."""
    reason: str
    """One sentence for a person."""

    def __post_init__(self) -> None:
        m, p = len(self.row), self.inclusion_probability
        columns = (self.row, self.size, self.max_new_tokens, p)
        if not (
            all(column.shape == (m,) for column in columns)
            and len(np.unique(self.row)) == m
            and bool((self.size >= 1).all() and (self.max_new_tokens >= 1).all())
            and bool((p > 0).all() and (p <= 1).all())
        ):
            raise InvalidInputError("a choice of prompts: rows once each, sizes and caps of 1 or "
                                    "more, probabilities in (0, 1]")  # fmt: skip

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of(
        cls, request: PromptRequest, row: Ints, inclusion_probability: Floats, reason: str
    ) -> "PromptChoice":
        """The rows, in the size and with the cap of the trainer's configuration."""
        return cls(
            row=row,
            size=np.full(len(row), request.group_size),
            max_new_tokens=np.full(len(row), request.max_new_tokens),
            inclusion_probability=inclusion_probability,
            reason=reason,
        )


@dataclass(frozen=True)
class FinishedGroups:
    """m groups all of whose samples have ended, n samples in all, sorted by group."""

    group_id: Ints
    """(m,)"""
    prompt_key: Ints
    """(m,)"""
    weight_version: Ints
    """(m,) oldest that wrote any of it."""
    group_row: Ints
    """(n,) rows of the groups, rising."""
    trajectory_id: Ints
    """(n,)"""
    reward: Floats
    """(n,) NaN: not known."""
    tokens: Ints
    """(n,) written."""
    truncated: Bools
    """(n,) ended by its cap."""
    step: int = 0
    weight_version_now: int = 0
    mean_logprob: Floats = field(default_factory=lambda: np.zeros(0))
    """(n,) log-probability per token, or (0,): not known."""

    def __len__(self) -> int:
        return len(self.group_id)

    @property
    def size(self) -> Ints:
        """(m,) samples of each group."""
        return np.bincount(self.group_row, minlength=len(self)).astype(np.int64)

    @property
    def rewarded(self) -> Ints:
        """(m,) samples of each group whose reward is known."""
        known = self.group_row[np.isfinite(self.reward)]
        return np.bincount(known, minlength=len(self)).astype(np.int64)

    @property
    def mean_reward(self) -> Floats:
        """(m,) of each group's known rewards; NaN where none is known."""
        known = np.where(np.isfinite(self.reward), self.reward, 0.0)
        total = np.bincount(self.group_row, weights=known, minlength=len(self))
        rewarded = self.rewarded
        return np.where(rewarded > 0, total / np.maximum(rewarded, 1), np.nan)

    @property
    def informative(self) -> Bools:
        """(m,) whether the group's known rewards are not all equal."""
        low, high = np.full(len(self), np.inf), np.full(len(self), -np.inf)
        known = np.isfinite(self.reward)
        np.minimum.at(low, self.group_row[known], self.reward[known])
        np.maximum.at(high, self.group_row[known], self.reward[known])
        return np.asarray(high > low)


@dataclass(frozen=True)
class Selection:
    """What of complete groups goes to the trainer."""

    accepted: Bools
    """(m,) the group counts towards the batch."""
    train: Bools
    """(n,) the sample is trained on; a sample of a group that is not accepted never is."""
    replayed: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(k,) ids of earlier groups trained on again; they count towards the batch."""
    correctness: CorrectnessClass = CorrectnessClass.EXACT
    """Of the selection itself."""
    weight: Floats = field(default_factory=lambda: np.zeros(0))
    """(m,) inverse of the probability with which a coin spared the group, where one was thrown for
    it; it multiplies 1 / inclusion probability.  (0,): 1 for all."""

    @property
    def weights(self) -> Floats:
        """(m,) `weight`, written out."""
        return self.weight if len(self.weight) else np.ones(len(self.accepted))

    @classmethod
    def everything(cls, groups: FinishedGroups) -> "Selection":
        """Every group, whole."""
        return cls(np.ones(len(groups), np.bool_), np.ones(len(groups.group_row), np.bool_))


class WholeGroups:
    """For prompt policies that only choose: no extension, everything is trained on."""

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """None gets more samples."""
        return np.zeros(len(groups), dtype=np.int64)

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """Every group counts, whole."""
        return Selection.everything(groups)

    def learn(self, groups: FinishedGroups) -> None:
        """Nothing."""
