"""What every policy promises.

A policy is a dataclass: its fields are its options, with defaults that were tested.  `decide` gets
values and returns values: no clock (`observation.now_s`), no randomness but `rng`, no I/O.  Learned
or remembered state is a private field that `state_dict` shows.  Its module's docstring is the
algorithm, with the source; `correctness` is what acting by it does to the samples.

Class variables that a policy may have:

- `TUNABLE: ClassVar[Mapping[str, Range]]`: which options `steersman tune` searches, and where.  The
  defaults lie within the ranges.
- `GUARD: ClassVar[Mapping[str, float]]`: bounds of the configuration's `guard` section (and
  `max_lag`) that the published rule implies, where it moves or parks more than the defaults allow.
  They hold where the user's configuration says nothing.

A placement policy of a trainer that asks for more groups than a batch needs also has
`groups_to_ask` (`Oversampling`); one that also decides what replicas draft has `draft`
(`Drafting`); one that compares plans and can tell what it thought of them has `alternatives`
(`Explains`); one that wants plans compared beside the ticks has `plans` (`LooksAhead`); one that
chooses by step what may act has `chosen` (`Learns`).  A prompt policy that draws from all its
candidates whatever their order says so by `any_order` (`AnyOrder`).

Who stops by a coin (probability 1 - q, in [0.05, 0.95]) decides STOP with propensity 1 - q where it
fell so, and CONTINUE with propensity q for those it spared, in the tick of the throw and once only:
then the stopped weigh 0, the spared 1 / q, and weighted sums are unbiased.  A side that is said
again, or not at all, makes them biased.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints, Observation
from steersman.policies.adaptive.plans import Plan
from steersman.policies.decision import Decision, DraftDecision, StackChoice
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection

Drafts = Sequence[DraftDecision | Decision]
"""Of replicas, and of trajectories that shall differ from theirs."""


@dataclass(frozen=True)
class Range:
    """Values of an option that are worth trying, both ends included."""

    low: float
    high: float
    log: bool = False
    """Values differ by factors, not by differences."""
    integer: bool = False

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"{self}: low must be below high, both finite")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: a search by factors starts above 0")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


class Policy(Protocol):
    """The part all policies share."""

    correctness: ClassVar[CorrectnessClass]
    """Of the samples of a run that it steers, on unchanged weights."""

    def state_dict(self) -> dict[str, Any]:
        """What the policy remembers; empty for a stateless one."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what it remembers."""


class PlacementPolicy(Policy, Protocol):
    """Decides where and when trajectories run: place, migrate, isolate, restart, defer, stop."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Decisions for this tick, at most one per trajectory.

        A waiting trajectory without a decision keeps waiting, so a policy must place every one of
        them sooner or later as long as a replica is alive.
        """


@runtime_checkable
class Oversampling(Protocol):
    """A placement policy whose trainer asks for more groups than its batch needs."""

    def groups_to_ask(self, groups_wanted: int) -> int:
        """Groups that shall be open in a step that needs `groups_wanted` complete ones, those
        carried over counted."""


@runtime_checkable
class Drafting(Protocol):
    """A placement policy that also decides how many tokens are drafted."""

    def draft(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> Drafts:
        """As `SpeculationPolicy.decide`, after `decide` of the same tick; asked where the
        configuration leaves drafting alone (`unchanged`): a policy chosen for it has the word."""


@runtime_checkable
class Explains(Protocol):
    """A placement policy that compares whole plans."""

    def alternatives(self) -> Mapping[str, float]:
        """What the last `decide` compared: name, predicted seconds to the end of the step.  Empty
        if it compared nothing."""


@runtime_checkable
class LooksAhead(Protocol):
    """A placement policy that wants plans for what waits compared in the simulator, beside the
    ticks; `observation.advice` is the answer, some ticks later."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """To compare from now on, the first being what the others are compared to; empty: none."""


@runtime_checkable
class Graded(Protocol):
    """A policy whose options say what it may do to samples; `correctness` is for the defaults."""

    @classmethod
    def correctness_with(cls, options: Mapping[str, Any]) -> CorrectnessClass:
        """With these options, which are valid."""


@runtime_checkable
class Learns(Protocol):
    """A placement policy that chooses by step what may act."""

    def chosen(self) -> StackChoice | None:
        """What the last `decide` chose; None: the step's choice stands."""


class StoppingPolicy(Policy, Protocol):
    """Decides which running trajectories are not worth finishing."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Stop decisions for this tick.  Where it depends on chance, with the propensity."""


class SpeculationPolicy(Policy, Protocol):
    """Decides how many tokens are drafted ahead of verifying them."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> Drafts:
        """Changes for this tick, at most one per replica and one (`SPECULATE`) per trajectory; who
        is without goes on as it is."""


class PromptPolicy(Policy, Protocol):
    """Decides which prompts are rolled out, how often, and what of it is trained on."""

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """Prompts to roll out now.  Asked again, with `request.refill` counting, as long as
        `select` has accepted fewer groups than the batch needs."""

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """(m,) samples to add to each of the groups, all of whose samples have ended; 0: the group
        is complete.  Asked again after they have."""

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """Which of the complete groups count towards the batch, and which samples are trained on.
        Each group is shown once."""

    def learn(self, groups: FinishedGroups) -> None:
        """Take in complete groups, each shown once, before `select` is asked about them."""


@runtime_checkable
class AnyOrder(Protocol):
    """A prompt policy that draws from all candidates itself: their order means nothing to it, and
    the whole pool may be offered."""

    any_order: ClassVar[bool]


class Stateless:
    """For policies that remember nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
