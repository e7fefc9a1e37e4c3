"""What every mechanism promises: to carry out one action on one trajectory, and to say its price.

`apply` commands an `Execution` and returns at once; the consequences arrive there.  It never
raises for what can happen in a race (the trajectory ended meanwhile, the target died): it answers
SUPERSEDED or INFEASIBLE, and the trajectory goes on as it was.
"""

from enum import StrEnum
from typing import ClassVar, Protocol

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.mechanisms.execution import Execution
from steersman.policies.decision import Action, Decision


class OutcomeKind(StrEnum):
    """What became of a decision when it met the world."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    """The trajectory had moved on (ended, or left) since the snapshot."""
    INFEASIBLE = "infeasible"
    """The target cannot take it."""


class Mechanism(Protocol):
    """One action."""

    action: ClassVar[Action]
    correctness: ClassVar[CorrectnessClass]
    """Class of the samples it touches, on unchanged weights."""

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """Seconds of replica time that carrying it out costs."""

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Command it."""


def handover_s(forecast: Forecast) -> float:
    """Seconds from leaving one replica to running on another, without the prefill."""
    return float(forecast.throughput.handover_s.mean())


def prefill_s(observation: Observation, forecast: Forecast, row: int) -> float:
    """Seconds to prefill everything the trajectory holds, on a replica without its KV cache."""
    t = observation.trajectories
    tokens = int(t.prompt_tokens[row] + t.generated_tokens[row])
    return float(tokens * forecast.throughput.prefill_token_s.mean())
