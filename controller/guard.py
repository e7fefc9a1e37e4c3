"""The guard: what a policy proposes is carried out only if it is legal, timely and affordable.

It looks at the same snapshot as the policy and drops, with a reason each: actions that do not fit
the trajectory's phase, dead or unknown targets, moves during the cool-down or beyond the budgets,
deferrals that would break the lag bound.  At most one action per trajectory survives; where several
policies speak about one trajectory, `PRECEDENCE` says who is heard.

A coin (a STOP that was drawn, or the CONTINUE of one that the same draw spared) is passed or
dropped whichever way it fell, or weights would not undo it: both sides are legal in the same
phases, bounded by the same floor, and heard at the same rank; of two coins the first one counts.
"""

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from steersman.controller.config import GuardConfig
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    AS_REPLICA,
    NO_VERSION,
    ONLY_AS_REPLICA,
    Objective,
    Observation,
)
from steersman.policies.decision import Action, Decision, DraftDecision

COIN = (Action.STOP, Action.CONTINUE)
"""Its two sides; a STOP of propensity 1 is a rule's, not a coin's."""
PRECEDENCE = (
    COIN,
    (Action.RESTART,),
    (Action.DEFER,),
    (Action.ISOLATE,),
    (Action.MIGRATE,),
    (Action.PLACE,),
    (Action.SPECULATE,),
)
"""An action that ends work makes any action that moves it pointless, so it is heard first.  So is
the other side of its coin: whoever was spared can be moved a tick later.  What is drafted for whom
follows from where it runs, so it comes last."""
LEAST_SIDE = 0.05
"""Probability of the rarer side of a coin: a throw makes no weight larger than 20."""

LEGAL_PHASES = {
    Action.STOP: (Phase.RUNNING, Phase.QUEUED),
    Action.CONTINUE: (Phase.RUNNING, Phase.QUEUED),
    Action.RESTART: (Phase.RUNNING,),
    Action.DEFER: (Phase.RUNNING, Phase.QUEUED),
    Action.ISOLATE: (Phase.RUNNING,),
    Action.MIGRATE: (Phase.RUNNING,),
    Action.PLACE: (Phase.QUEUED,),
    Action.SPECULATE: (Phase.RUNNING,),
}
TARGETED = frozenset({Action.PLACE, Action.MIGRATE, Action.ISOLATE})
CROSSING = frozenset({Action.MIGRATE, Action.ISOLATE})
"""Actions that rest on what the target reported of itself."""
MOVING = frozenset({Action.MIGRATE, Action.ISOLATE, Action.DEFER, Action.RESTART})
"""Actions that abort a running request, and so cost a prefill somewhere."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A decision that is not carried out, and why."""

    decision: Decision
    why: str


def guard(
    observation: Observation, proposed: list[Decision], config: GuardConfig
) -> tuple[list[Decision], list[Dropped]]:
    """Split `proposed` into what may be done now and what may not."""
    rank = {action: place for place, equals in enumerate(PRECEDENCE) for action in equals}
    kept: list[Decision] = []
    dropped: list[Dropped] = []
    check = _Check(observation, config)
    seen: set[int] = set()
    if len({decision.action for decision in proposed}) > 1:
        proposed = sorted(proposed, key=lambda d: rank.get(d.action, len(rank)))
    for decision in proposed:
        if decision.trajectory_id in seen:
            dropped.append(Dropped(decision, "another action for this trajectory comes first"))
            continue
        why = check.objection(decision)
        if why:
            dropped.append(Dropped(decision, why))
        else:
            seen.add(decision.trajectory_id)
            kept.append(decision)
    return kept, dropped


def feasible(observation: Observation, drafts: list[DraftDecision]) -> list[DraftDecision]:
    """Those that change what a living replica drafts, to something that it can."""
    r = observation.replicas
    row = {name: i for i, name in enumerate(r.names)}
    known = [(d, row[d.replica]) for d in drafts if d.replica in row]
    return [
        d
        for d, i in known
        if r.alive[i]
        and 0 <= d.draft_tokens <= r.max_draft_tokens[i]
        and d.draft_tokens != r.draft_tokens[i]
    ]


class _Check:
    """The checks of one tick, with what they need looked up once."""

    def __init__(self, observation: Observation, config: GuardConfig) -> None:
        t, replicas = observation.trajectories, observation.replicas
        self._observation, self._config = observation, config
        self._ids = t.trajectory_id
        self._phase = t.phase.tolist()
        self._alive = dict(zip(replicas.names, replicas.alive.tolist(), strict=True))
        self._age_s = dict(zip(replicas.names, replicas.metrics_age_s.tolist(), strict=True))
        self._max_age_s = config.metrics_max_age_s
        self._moves_left = config.max_moves_per_tick
        self._deferring = set(t.group_row[t.phase == Phase.PARKED].tolist())

    def objection(self, decision: Decision) -> str:
        """Why not, or ''.  Counts what it lets through."""
        row = self._row(decision)
        if row < 0:
            return "no such trajectory"
        if not (0 < decision.propensity <= 1 and isfinite(decision.gain_s + decision.cost_s)):
            return "its propensity, gain or cost is not a number that can be"
        legal = LEGAL_PHASES.get(decision.action)
        if legal is None:
            return f"{decision.action} is not an action on trajectories that can be carried out"
        if self._phase[row] not in legal:
            return f"it is {Phase(self._phase[row]).name.lower()}"
        if decision.action in COIN and (objection := _coin_objection(decision)):
            return objection
        if decision.action is Action.SPECULATE:
            return self._draft_objection(decision, row)
        if decision.action in TARGETED and not self._alive.get(decision.replica, False):
            return f"replica {decision.replica!r} is not alive"
        if decision.action in CROSSING and self._age_s[decision.replica] > self._max_age_s:
            age_s = self._age_s[decision.replica]
            return f"the figures of {decision.replica!r} are {age_s:.1f} s old"
        if decision.action in MOVING and self._phase[row] == Phase.RUNNING:
            return self._moving_objection(decision, row)
        if decision.action is Action.DEFER:
            return self._deferral_objection(row)
        return ""

    def _moving_objection(self, decision: Decision, row: int) -> str:
        t, config = self._observation.trajectories, self._config
        group = int(t.group_row[row])
        # half a parked group helps nobody: it waits for its other half all the same
        joins = decision.action is Action.DEFER and group in self._deferring
        if self._moves_left <= 0 and not joins:
            return f"the {config.max_moves_per_tick} moves of this tick are used up"
        if t.moves[row] >= config.max_moves_per_trajectory:
            return f"it has been moved {t.moves[row]} times"
        if self._observation.now_s - t.moved_s[row] < config.move_cooldown_s:
            barred = t.moved_s[row] == inf
            return "it cannot go on elsewhere" if barred else "it was moved a moment ago"
        if decision.action is Action.RESTART and t.restarts[row] >= config.max_restarts:
            return f"its slot has been restarted {t.restarts[row]} times"
        if decision.action is Action.DEFER and (objection := self._deferral_objection(row)):
            return objection
        if decision.action is Action.DEFER:
            self._deferring.add(group)
        self._moves_left -= not joins
        return ""

    def _deferral_objection(self, row: int) -> str:
        t, trainer = self._observation.trajectories, self._observation.trainer
        if trainer.objective is Objective.STREAM:
            return "a stream has no later step that would resume it"
        if t.deferred[row] >= self._config.max_deferrals:
            return f"it has been deferred {t.deferred[row]} times"
        oldest = int(t.oldest_weight_version[row])
        if oldest == NO_VERSION:
            oldest = trainer.weight_version
        lag = trainer.weight_version + 1 - oldest
        if lag > trainer.max_lag:
            return f"the next step would resume it at lag {lag}; the bound is {trainer.max_lag}"
        return ""

    def _draft_objection(self, decision: Decision, row: int) -> str:
        t, replicas = self._observation.trajectories, self._observation.replicas
        tokens = decision.draft_tokens
        if t.draft_tokens[row] == ONLY_AS_REPLICA:
            return "single trajectories cannot be told what to draft here"
        most = int(replicas.max_draft_tokens[t.replica_row[row]])
        if not AS_REPLICA <= tokens <= most:
            return f"its replica can draft 0 to {most} tokens, not {tokens}"
        return "it does already" if tokens == t.draft_tokens[row] else ""

    def _row(self, decision: Decision) -> int:
        row = decision.row
        if 0 <= row < len(self._ids) and self._ids[row] == decision.trajectory_id:
            return row
        row = int(np.searchsorted(self._ids, decision.trajectory_id))
        found = row < len(self._ids) and self._ids[row] == decision.trajectory_id
        return row if found else -1


def _coin_objection(decision: Decision) -> str:
    """Judged alike for both sides."""
    rarer = min(decision.propensity, 1.0 - decision.propensity)
    if rarer == 0.0:
        stops = decision.action is Action.STOP  # by a rule, not by a coin
        return "" if stops else "it goes on anyway: only whom a coin spared is told so"
    if rarer < LEAST_SIDE - 1e-9:  # 1 - q and q are not rounded alike
        return f"a side of its coin has the probability {rarer:.3g}; the least is {LEAST_SIDE}"
    return ""
