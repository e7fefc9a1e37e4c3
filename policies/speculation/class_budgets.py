"""A budget of drafts by length class: none for the short, more the longer a trajectory still is.

DAS (arXiv 2511.13841).  A batch that needs N forward passes and computes tokens takes
t = c_base N + c_tok tokens.  Of a trajectory of l tokens, p drafted ones save

    A(p) = k l (1 - exp(-a p / l))

passes, k being the largest share that drafts can save and k a what the first drafted token saves.
To be done in N passes it needs the budget

    p*(N) = -(l / a) ln(1 - (1 - N / l) / k)   if l > N, else 0,

and N is chosen to make t least: those shorter than N get nothing.  (Our source prints
k (1 - N / l) inside the logarithm.  That is not the inverse of A unless k = 1, so it is not used.)
The classes long, medium and short come from a prompt's history and are raised while it runs.

Different here:

- l is what is still to be written, by the forecast; it is conditional on what was written, so a
  trajectory that outlives its class moves up by itself.  The classes are cut at two quantiles of
  the forecasts of all that run; each counts with its mean.
- k and a follow from the forecast acceptance q of a drafted token: an endless draft saves the share
  q of the passes and a first token saves q, so k = q and a = 1.  Theirs are fitted per problem.
- Engines take one K per replica.  A replica's K is the mean over its trajectories of p* / N, the
  drafts per pass, weighted by the tokens they still have to write, and rounded.  The short ones on
  it thus draft as well, which the model does not charge for.
- No suffix trees are built; the drafter is the engine's own.

Correctness class: exact, provided the engine's verification is lossless.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Bools, Floats, Ints, Observation
from steersman.estimators.speculation import expected_tokens
from steersman.policies.contract import SpeculationPolicy, Stateless
from steersman.policies.decision import DraftDecision
from steersman.policies.speculation._drafts import LEAVE, acceptance_to, changes

NAME = "class_budgets"
CLASSES = 3
PASSES = 64
"""Numbers of passes tried between the fewest possible and none saved; steps of about 1 %."""
MOST_SAVED = 0.99
"""Largest k: at 1 a trajectory could be had for nothing."""


@dataclass
class ClassBudgets(Stateless):
    """Our source does not give the classes' borders."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    medium_from: float = 0.5
    """Quantile of the forecast remaining lengths from which a trajectory is medium."""
    long_from: float = 0.9
    """Quantile from which it is long: the last tenth."""

    def __post_init__(self) -> None:
        if not 0.0 < self.medium_from < self.long_from < 1.0:
            raise ValueError("0 < medium_from < long_from < 1")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[DraftDecision]:
        """Give every busy replica the mean budget of its trajectories."""
        replica = observation.destination_row
        left = forecast.length.mean_remaining_tokens
        rows = np.flatnonzero((replica >= 0) & (left > 0))
        if not len(rows):
            return []
        wanted = self._draft_tokens(observation, forecast, rows)
        return changes(observation, wanted, NAME, [f"mean budget {k}" for k in wanted.tolist()])

    def _draft_tokens(self, observation: Observation, forecast: Forecast, rows: Ints) -> Ints:
        """(r,) K of every replica that runs something of `rows`, else `LEAVE`."""
        r, f = observation.replicas, forecast.throughput
        replica, left = (
            observation.destination_row[rows],
            forecast.length.mean_remaining_tokens[rows],
        )
        borders = np.quantile(left, (self.medium_from, self.long_from))
        cell = replica * CLASSES + np.searchsorted(borders, left, side="right")
        shape = (len(r), CLASSES)
        count = np.bincount(cell, minlength=len(r) * CLASSES).reshape(shape)
        tokens = np.bincount(cell, left, minlength=len(r) * CLASSES).reshape(shape)
        length = tokens / np.maximum(count, 1)
        depth = int(r.max_draft_tokens.max(initial=0))
        accepted = _accepted_share(acceptance_to(forecast, depth), r.max_draft_tokens)
        pass_s = f.fixed_s + f.token_s * observation.resident_tokens()
        passes, budget = draft_budgets(length, count, accepted, pass_s, f.sequence_s)
        total = tokens.sum(axis=1)
        per_pass = (budget * tokens).sum(axis=1) / np.maximum(total * passes, 1e-9)
        known = (total > 0) & np.isfinite(per_pass)
        return np.where(known, np.rint(np.where(known, per_pass, 0.0)), LEAVE).astype(np.int64)


def _accepted_share(acceptance: Floats, draft_tokens: Ints) -> Floats:
    """(r,) accepted of the tokens tried when each replica drafts (r,) tokens."""
    tokens = expected_tokens(acceptance)
    row = np.arange(len(tokens))
    # of K positions those are tried before which all were accepted: E(K - 1) of them
    return np.asarray(
        (tokens[row, draft_tokens] - 1.0) / tokens[row, np.maximum(draft_tokens - 1, 0)]
    )


def draft_budgets(
    length: Floats, count: Ints, accepted: Floats, pass_s: Floats, token_s: Floats
) -> tuple[Floats, Floats]:
    """(r,) passes and (r, c) draft tokens of one trajectory of each class that take least time.

    (r, c) `length` of a class and `count` of its trajectories on each replica; (r,) `accepted`
    share of the tried drafts, seconds of a pass and of a token computed in it.
    """
    saved = np.clip(accepted, 0.0, MOST_SAVED)[:, None]
    longest = np.where(count > 0, length, 0.0).max(axis=1, initial=0.0)
    # the fewest passes are out of reach: they would take endless drafts
    step = np.linspace(1.0, 0.0, PASSES, endpoint=False)
    passes = longest[:, None] * (1.0 - saved * (1.0 - step))
    budget = _budget(length[:, None, :], passes[:, :, None], saved[:, :, None])
    written = np.minimum(length[:, None, :], passes[:, :, None])
    computed = ((budget + written) * count[:, None, :]).sum(axis=2)
    time_s = pass_s[:, None] * passes + token_s[:, None] * computed
    best = np.argmin(time_s, axis=1)
    row = np.arange(len(best))
    return passes[row, best], budget[row, best]


def _budget(length: Floats, passes: Floats, saved: Floats) -> Floats:
    """p*(N), with a = 1."""
    needs: Bools = (length > passes) & (saved > 0)
    share = np.where(needs, 1.0 - passes / np.where(needs, length, 1.0), 0.0)
    left = 1.0 - share / np.where(saved > 0, saved, 1.0)
    return np.asarray(np.where(needs, -length * np.log(np.maximum(left, 1e-12)), 0.0))


PLUGIN: type[SpeculationPolicy] = ClassBudgets
