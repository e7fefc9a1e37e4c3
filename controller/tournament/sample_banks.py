"""What prompts' samples become: recorded ones drawn again, or made-up ones of a model that learns.

Both know every prompt's outcome in any number of samples, whatever a policy asks for.  A draw is a
function of the generator it is given, and the first samples of a larger draw are those of a smaller
one: policies that ask for different numbers of samples see the same ones as far as they go.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

import numpy as np

from steersman.controller.calibration.steps import Samples
from steersman.controller.replay.sources import PROMPT_TOKENS
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Ints


class Drawn(NamedTuple):
    """Samples of one prompt."""

    length: Ints
    """(count,) tokens, at most the bank's cap."""
    reward: Floats
    """(count,)"""
    prompt_tokens: int


class SampleBank(Protocol):
    """Prompts and what their samples become."""

    @property
    def keys(self) -> Ints:
        """(p,) of its prompts."""

    @property
    def group_size(self) -> int:
        """Samples of a group by the trainer's configuration."""

    @property
    def max_new_tokens(self) -> int:
        """Token cap by the trainer's configuration."""

    def draw(
        self, prompt_key: int, count: int, weight_version: int, rng: np.random.Generator
    ) -> Drawn:
        """`count` samples of a prompt by the weights of that version."""


class RecordedSamples:
    """Recorded samples of each prompt, drawn again with replacement; the weights stand still."""

    def __init__(self, samples: Samples, group_size: int) -> None:
        known = np.isfinite(samples.reward)
        names, row = np.unique(np.array(samples.prompt)[known], return_inverse=True)
        if not len(names):
            raise InvalidInputError("the samples have no rewards: a prompt policy has no use of it")
        order = np.argsort(row, kind="stable")
        self._length, self._reward = samples.length[known][order], samples.reward[known][order]
        self._count = np.bincount(row)
        self._first = np.cumsum(self._count) - self._count
        self._group_size, self._max_new_tokens = group_size, int(samples.max_new_tokens.max())

    @property
    def keys(self) -> Ints:
        """(p,) 0, 1, 2 and so on."""
        return np.arange(len(self._count))

    @property
    def group_size(self) -> int:
        """As given."""
        return self._group_size

    @property
    def max_new_tokens(self) -> int:
        """The largest that occurs."""
        return self._max_new_tokens

    def draw(
        self, prompt_key: int, count: int, weight_version: int, rng: np.random.Generator
    ) -> Drawn:
        """Any of the prompt's own samples, each as likely as any other."""
        own = np.floor(rng.random(count) * self._count[prompt_key]).astype(np.int64)
        rows = self._first[prompt_key] + own
        return Drawn(self._length[rows], self._reward[rows], PROMPT_TOKENS)


@dataclass
class DriftingSamples:
    """A model that learns: all prompts become easier together, and each strays by itself.

    The logit of a prompt's pass rate is base + rise * (1 - exp(-version / rise_versions)) + walk,
    with base ~ N(start, spread^2) and a random walk of the prompt's own.  Log lengths have a
    logistic spread (a power tail: the longest of 512 is some 16 times the median) around a median
    that grows with the prompt's difficulty.
    """

    prompts: int = 2000
    group_size: int = 8
    max_new_tokens: int = 4096
    prompt_tokens: int = 200
    start: float = -0.8
    spread: float = 2.2
    """A third of groups of 8 are then degenerate, as reported of many trainings."""
    rise: float = 2.5
    rise_versions: float = 100.0
    walk: float = 0.06
    """Deviation of one weight version's step."""
    median_tokens: float = 400.0
    """Of a prompt whose base logit is 0."""
    growth: float = 0.25
    """Of the log length, per logit of difficulty."""
    tail: float = 0.45
    """Scale of the log length's logistic distribution."""
    seed: int = 0

    _base: Floats = field(init=False)
    _walks: list[Floats] = field(init=False)

    def __post_init__(self) -> None:
        if min(self.prompts, self.group_size, self.max_new_tokens) < 1:
            raise InvalidInputError("prompts, group_size and max_new_tokens are 1 or more")
        rng = np.random.default_rng((self.seed, 0))
        self._base = rng.normal(self.start, self.spread, self.prompts)
        self._walks = [np.zeros(self.prompts)]

    @classmethod
    def still(cls, pass_rate: Floats, group_size: int = 8, max_new_tokens: int = 4096) -> Self:
        """Prompts of these pass rates, which stay as they are."""
        bank = cls(len(pass_rate), group_size, max_new_tokens, rise=0.0, walk=0.0)
        rate = np.clip(pass_rate, 1e-9, 1.0 - 1e-9)
        bank._base = np.log(rate / (1.0 - rate))
        return bank

    @property
    def keys(self) -> Ints:
        """(p,) 0, 1, 2 and so on."""
        return np.arange(self.prompts)

    def pass_rate(self, weight_version: int) -> Floats:
        """(p,) of a sample by those weights."""
        while len(self._walks) <= weight_version:
            rng = np.random.default_rng((self.seed, len(self._walks)))
            self._walks.append(self._walks[-1] + rng.normal(0.0, self.walk, self.prompts))
        risen = self.rise * -np.expm1(-weight_version / self.rise_versions)
        return np.asarray(1.0 / (1.0 + np.exp(-(self._base + risen + self._walks[weight_version]))))

    def draw(
        self, prompt_key: int, count: int, weight_version: int, rng: np.random.Generator
    ) -> Drawn:
        """Samples whose rewards are 0 or 1; what reaches the cap has failed."""
        chance, place = rng.random((count, 2)).T
        passed = chance < self.pass_rate(weight_version)[prompt_key]
        place = np.clip(place, 1e-12, 1.0 - 1e-12)
        log_length = (
            np.log(self.median_tokens)
            - self.growth * self._base[prompt_key]
            + self.tail * np.log(place / (1.0 - place))
        )
        length = np.exp(np.minimum(log_length, 30.0)).astype(np.int64)
        length = np.clip(length, 1, self.max_new_tokens)
        passed &= length < self.max_new_tokens
        return Drawn(length, passed.astype(np.float64), self.prompt_tokens)
