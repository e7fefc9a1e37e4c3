"""Restart: end the trajectory as RESTARTED; a fresh sample of the same prompt takes its slot.

Empirical: whoever restarts because of length or content prefers trajectories that would not have
been restarted, and no weight repairs that.  The fresh sample therefore carries the class too.  The
old tokens are recorded as work done.
"""

from typing import ClassVar

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import Observation
from steersman.mechanisms.contract import Mechanism, OutcomeKind, handover_s
from steersman.mechanisms.execution import Execution, ToEnd
from steersman.policies.decision import Action, Decision


class Restart:
    """Replace one trajectory by a fresh sample."""

    action: ClassVar[Action] = Action.RESTART
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """Every token written so far is written in vain."""
        t, model = observation.trajectories, forecast.throughput
        here = max(int(t.replica_row[row]), 0)
        return handover_s(forecast) + float(t.generated_tokens[row] * model.per_sequence_s[here])

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """End the old one; whoever keeps the group puts a fresh one in its slot."""
        if execution.phase is not Phase.RUNNING:
            return OutcomeKind.SUPERSEDED
        execution.leave(ToEnd(Disposition.RESTARTED, self.correctness), decision.reason)
        return OutcomeKind.APPLIED


PLUGIN: type[Mechanism] = Restart
