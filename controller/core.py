"""The controller: a pure function from an observation to decisions.

`decide` learns from what ended, forecasts, lets the policy decide and the guard check.  It reads no
clock (`observation.now_s`), draws randomness from (seed, tick), does no I/O and awaits nothing, so
the live loop, a replay and a test run the same code and get the same decisions.  What it has
learned is explicit: `state_dict`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from steersman.controller.config import Config
from steersman.controller.guard import Dropped, guard
from steersman.controller.plugins import build
from steersman.estimators.contract import LengthEstimator, ThroughputEstimator
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Decision


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out of one tick."""

    decisions: list[Decision]
    dropped: list[Dropped]
    forecast: Forecast


class Controller:
    """Estimators, one policy of each kind, and the guard."""

    def __init__(
        self,
        config: Config,
        length: LengthEstimator,
        throughput: ThroughputEstimator,
        placement: PlacementPolicy,
    ) -> None:
        self.config = config
        self._length, self._throughput, self._placement = length, throughput, placement

    @classmethod
    def from_config(cls, config: Config) -> "Controller":
        """Build the parts that `config` names."""
        return cls(
            config,
            length=build("estimators", config.length.name, config.length.options),
            throughput=build("estimators", config.throughput.name, config.throughput.options),
            placement=build("policies.placement", config.placement.name, config.placement.options),
        )

    def decide(self, observation: Observation) -> Verdict:
        """One tick."""
        self._length.observe(observation)
        self._throughput.observe(observation)
        forecast = Forecast(
            length=self._length.forecast(observation),
            throughput=self._throughput.forecast(observation),
        )
        rng = np.random.default_rng((self.config.seed, observation.tick))
        proposed = self._placement.decide(observation, forecast, rng)
        decisions, dropped = guard(observation, proposed, self.config.guard)
        return Verdict(decisions, dropped, forecast)

    def state_dict(self) -> dict[str, Any]:
        """Everything learned or remembered, as JSON can hold it."""
        return {
            "length": self._length.state_dict(),
            "throughput": self._throughput.state_dict(),
            "placement": self._placement.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was learned."""
        self._length.load_state_dict(state["length"])
        self._throughput.load_state_dict(state["throughput"])
        self._placement.load_state_dict(state["placement"])
