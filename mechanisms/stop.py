"""Stop: end the trajectory now; the tokens so far are its answer, with disposition STOPPED.

Empirical where a rule stops (propensity 1).  Where a coin does (propensity 1 - q), the answer
weighs 0 and those that the coin spared weigh 1 / q (`continue_`): modified.  It weighs 0 even if
its natural end arrives before the abort: the coin has fallen, and those it spared count for it.
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
        correctness = self.correctness
        if decision.propensity < 1:
            correctness = CorrectnessClass.MODIFIED
            execution.weigh(0.0)
        execution.leave(ToEnd(Disposition.STOPPED, correctness), decision.reason)
        return OutcomeKind.APPLIED


PLUGIN: type[Mechanism] = Stop
