"""Stop: end the trajectory now; the tokens so far are its answer, with disposition STOPPED.

Empirical, unless whoever stops draws from a known keep-probability and passes it as the decision's
propensity; then the survivors can be weighted by its inverse (modified).
"""

from typing import ClassVar

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import Observation
from steersman.mechanisms.contract import Mechanism, OutcomeKind
from steersman.mechanisms.execution import Execution, ToEnd
from steersman.policies.decision import Action, Decision


class Stop:
    """End one trajectory early."""

    action: ClassVar[Action] = Action.STOP
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """Nothing: it only saves."""
        return 0.0

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Abort it; its natural end still wins if it arrives first."""
        if execution.phase not in (Phase.RUNNING, Phase.QUEUED):
            return OutcomeKind.SUPERSEDED
        execution.leave(ToEnd(Disposition.STOPPED, self.correctness), decision.reason)
        return OutcomeKind.APPLIED


PLUGIN: type[Mechanism] = Stop
