"""Place: submit a waiting trajectory to a replica.  Exact.

Tokens of earlier attempts are sent along as part of the prompt, and the remaining budget is the
cap minus what is written.
"""

from typing import ClassVar

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Observation
from steersman.mechanisms.contract import Mechanism, OutcomeKind, prefill_s
from steersman.mechanisms.execution import Execution
from steersman.policies.decision import Action, Decision


class Place:
    """Start an attempt."""

    action: ClassVar[Action] = Action.PLACE
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """The prefill, which has to be paid somewhere."""
        return prefill_s(observation, forecast, row)

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Submit it, unless it no longer waits or the replica died."""
        if execution.phase is not Phase.QUEUED:
            return OutcomeKind.SUPERSEDED
        placed = execution.place(decision.replica)
        return OutcomeKind.APPLIED if placed else OutcomeKind.INFEASIBLE


PLUGIN: type[Mechanism] = Place
