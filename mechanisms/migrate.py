"""Migrate: abort, keep the partial tokens, continue on another replica with what is left.  Exact.

Costs one prefill of prompt and tokens on the target.  The distribution is unchanged: the target
samples from p(rest | prefix) as the source would have.
"""

from typing import ClassVar

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Observation
from steersman.mechanisms.contract import Mechanism, OutcomeKind, handover_s, prefill_s
from steersman.mechanisms.execution import Execution, ToReplica
from steersman.policies.decision import Action, Decision


class Migrate:
    """Move one trajectory."""

    action: ClassVar[Action] = Action.MIGRATE
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """Hand-over and prefill on the target."""
        return handover_s(forecast) + prefill_s(observation, forecast, row)

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Leave for the target."""
        if execution.phase is not Phase.RUNNING or execution.replica == decision.replica:
            return OutcomeKind.SUPERSEDED
        if not execution.fleet.is_alive(decision.replica):
            return OutcomeKind.INFEASIBLE
        execution.leave(ToReplica(decision.replica), decision.reason)
        return OutcomeKind.APPLIED


PLUGIN: type[Mechanism] = Migrate
