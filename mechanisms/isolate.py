"""Isolate: migrate into another pool, so that long trajectories stop sharing a batch.  Exact.

The same three steps as a migration; what differs is the target, which must belong to another pool
than the source.
"""

from typing import ClassVar

from steersman.estimators.lifecycle import Phase
from steersman.mechanisms.contract import Mechanism, OutcomeKind
from steersman.mechanisms.execution import Execution
from steersman.mechanisms.fleet import Fleet
from steersman.mechanisms.migrate import Migrate
from steersman.policies.decision import Action, Decision


class Isolate(Migrate):
    """Move one trajectory into another pool."""

    action: ClassVar[Action] = Action.ISOLATE

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Leave for the target if it is in another pool."""
        if execution.phase is not Phase.RUNNING or execution.replica is None:
            return OutcomeKind.SUPERSEDED
        if pool(execution.fleet, execution.replica) == pool(execution.fleet, decision.replica):
            return OutcomeKind.INFEASIBLE
        return super().apply(execution, decision)


def pool(fleet: Fleet, name: str) -> str | None:
    """Pool of a replica; None if the fleet does not know it."""
    return next((info.pool for info in fleet.replicas if info.name == name), None)


PLUGIN: type[Mechanism] = Isolate
