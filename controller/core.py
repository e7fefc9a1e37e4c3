"""The controller: a pure function from an observation to decisions.

`decide` learns from what ended, asks whether it still holds, forecasts, lets the policies decide
and the guard check.  It reads no clock (`observation.now_s`), draws randomness from (seed, tick),
does no I/O and awaits nothing, so the live loop, a replay and a test run the same code and get the
same decisions.  What it has learned is explicit: `state_dict`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from steersman.controller.config import KINDS, Config
from steersman.controller.guard import Dropped, feasible, guard
from steersman.controller.plugins import build
from steersman.estimators.contract import (
    AcceptanceEstimator,
    DriftEstimator,
    Estimator,
    LengthEstimator,
    SuccessEstimator,
    ThroughputEstimator,
)
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Observation
from steersman.policies.contract import (
    Drafting,
    Drafts,
    Explains,
    Learns,
    PlacementPolicy,
    Policy,
    SpeculationPolicy,
    StoppingPolicy,
)
from steersman.policies.decision import Decision, DraftDecision, StackChoice
from steersman.policies.speculation.unchanged import Unchanged


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out of one tick."""

    decisions: list[Decision]
    dropped: list[Dropped]
    drafts: list[DraftDecision]
    forecast: Forecast
    alternatives: Mapping[str, float]
    """What the placement policy compared, by name: predicted seconds to the end of the step."""
    stack: StackChoice | None
    """What it chose for the step that begins."""


Part = TypeVar("Part")


class _Parts(Generic[Part]):
    """A frozen dataclass whose fields are sections of the configuration, each naming a part."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Build the ones that `config` names."""
        parts = {name: getattr(config, name) for name in cls.__dataclass_fields__}
        return cls(**{n: build(KINDS[n], part.name, part.options) for n, part in parts.items()})

    def named(self) -> dict[str, Part]:
        """By section."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Estimators(_Parts[Estimator]):
    """One of each; the fields are the configuration's sections."""

    length: LengthEstimator
    throughput: ThroughputEstimator
    success: SuccessEstimator
    acceptance: AcceptanceEstimator
    drift: DriftEstimator

    def forecast(self, observation: Observation) -> Forecast:
        """Learn from one observation, then answer for it.

        Surprises of the groups that ended go to the drift estimator, whose doubt comes back before
        anything is forecast.
        """
        for estimator in self.named().values():
            estimator.observe(observation)
        self.drift.feed("length", self.length.surprises())
        self.drift.feed("success", self.success.surprises())
        drift = self.drift.forecast(observation)
        for source, keep in drift.keep.items():
            if keep < 1 and source in ("length", "success"):
                self.named()[source].reset_on_drift(keep)
        return Forecast(
            length=self.length.forecast(observation),
            throughput=self.throughput.forecast(observation),
            success=self.success.forecast(observation),
            acceptance=self.acceptance.forecast(observation),
            drift=drift,
        )


@dataclass(frozen=True)
class Stack(_Parts[Policy]):
    """One policy of each kind that decides at every tick; the fields are the configuration's
    sections."""

    placement: PlacementPolicy
    stopping: StoppingPolicy
    speculation: SpeculationPolicy


class Controller:
    """Estimators, a stack of policies, and the guard."""

    def __init__(self, config: Config, estimators: Estimators, stack: Stack) -> None:
        self.config = config
        self._estimators, self._stack = estimators, stack

    @classmethod
    def from_config(cls, config: Config) -> "Controller":
        """Build the parts that `config` names."""
        return cls(config, Estimators.from_config(config), Stack.from_config(config))

    @property
    def placement(self) -> PlacementPolicy:
        """The policy that decides where and when trajectories run."""
        return self._stack.placement

    def decide(self, observation: Observation) -> Verdict:
        """One tick."""
        forecast = self._estimators.forecast(observation)
        rng = np.random.default_rng((self.config.seed, observation.tick))
        stack = self._stack
        proposed = stack.placement.decide(observation, forecast, rng)
        proposed += stack.stopping.decide(observation, forecast, rng)
        told = self._drafts(observation, forecast, rng)
        proposed += [d for d in told if isinstance(d, Decision)]
        decisions, dropped = guard(observation, proposed, self.config.guard)
        drafts = feasible(observation, [d for d in told if isinstance(d, DraftDecision)])
        weighed = stack.placement.alternatives() if isinstance(stack.placement, Explains) else {}
        stack_choice = stack.placement.chosen() if isinstance(stack.placement, Learns) else None
        return Verdict(decisions, dropped, drafts, forecast, dict(weighed), stack_choice)

    def health(self) -> dict[str, dict[str, float]]:
        """How good the estimators' past answers were: section, metric, value (NaN: unknown)."""
        return {name: dict(part.health()) for name, part in self._estimators.named().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything learned or remembered, as JSON can hold it."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was learned."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _drafts(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> Drafts:
        """The placement policy may decide jointly, unless somebody was chosen for it."""
        placement, speculation = self._stack.placement, self._stack.speculation
        if isinstance(placement, Drafting) and isinstance(speculation, Unchanged):
            return placement.draft(observation, forecast, rng)
        return speculation.decide(observation, forecast, rng)

    def _parts(self) -> dict[str, Estimator | Policy]:
        return {**self._estimators.named(), **self._stack.named()}
