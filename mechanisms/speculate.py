"""Speculate: draft a number of tokens of its own for one trajectory, from now on.  Exact.

A draft of K tokens is verified in one iteration, which keeps its longest prefix that rejection
sampling accepts and writes one token more (Leviathan et al., arXiv 2211.17192); with drafts that
are looked up, which have no distribution of their own, a drafted token x is accepted with
probability p(x), and what stands in for a rejected one is drawn from p without x.  Each token is
then distributed as without drafts, so that weights play no part here: bad drafts cost time only.
A fleet must refuse to draft where its engines verify otherwise (`max_draft_tokens` is 0 there).

The number stays with the trajectory when it moves.  K tokens of work are added per iteration
while drafts miss; the price is in the iterations, not in carrying this out.
"""

from typing import ClassVar

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.mechanisms.contract import Mechanism, OutcomeKind
from steersman.mechanisms.execution import Execution
from steersman.policies.decision import Action, Decision


class Speculate:
    """Tell one trajectory's engine."""

    action: ClassVar[Action] = Action.SPECULATE
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    def cost_s(self, observation: Observation, forecast: Forecast, row: int) -> float:
        """Nothing at once."""
        return 0.0

    def apply(self, execution: Execution, decision: Decision) -> OutcomeKind:
        """Draft so many, if it runs."""
        done = execution.speculate(decision.draft_tokens)
        return OutcomeKind.APPLIED if done else OutcomeKind.SUPERSEDED


PLUGIN: type[Mechanism] = Speculate
