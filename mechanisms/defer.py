"""Defer: park the partial tokens; a later step resumes them on the weights of that step.

Corrected: the tokens are kept as segments of the weight versions that wrote them, with their
log-probabilities, so that the trainer can weight them.  On unchanged weights it is exact.  Nothing
is thrown away, so long answers are late, not missing.  The lag bound is checked before.
"""

from typing import ClassVar

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Observation
from steersman.mechanisms.contract import Mechanism, OutcomeKind, prefill_s
from steersman.mechanisms.execution import Execution, ToParking
from steersman.policies.decision import Action, Decision


class Defer:
    """Park one trajectory."""

    action: ClassVar[Action] = Action.DEFER
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """The prefill when it is resumed."""
        return prefill_s(observation, forecast, row)

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Leave for the parking place."""
        if execution.phase not in (Phase.RUNNING, Phase.QUEUED):
            return OutcomeKind.SUPERSEDED
        execution.leave(ToParking(), decision.reason)
        return OutcomeKind.APPLIED


PLUGIN: type[Mechanism] = Defer
