"""Continue: a coin that might have stopped it spared it; its answer weighs 1 / probability.

Modified: a sum over trajectories, each times its weight, has the expectation it would have had if
nobody had been stopped (Horvitz and Thompson, JASA 1952), whatever the coin's probability rests on
(length, content, siblings).  The stopped side weighs 0 (`stop`).  Several throws multiply.

A weight is above 1 by chance, so sums scatter more than unweighted ones: each throw adds
(1 - q) / q times the square of what it decides over to the variance.  (The file is not called
`continue`, which no Python module can be.)
"""

from typing import ClassVar

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Observation
from steersman.mechanisms.contract import Mechanism, OutcomeKind
from steersman.mechanisms.execution import Execution
from steersman.policies.decision import Action, Decision


class Continue:
    """Weigh one trajectory that was spared."""

    action: ClassVar[Action] = Action.CONTINUE
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """Nothing: it runs as it would have."""
        return 0.0

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Multiply its weight, in the same phases in which `stop` would have ended it."""
        if execution.phase not in (Phase.RUNNING, Phase.QUEUED):
            return OutcomeKind.SUPERSEDED
        execution.weigh(1.0 / decision.propensity)
        return OutcomeKind.APPLIED


PLUGIN: type[Mechanism] = Continue
