"""Moves that let the step end sooner: away from whatever replica would end last.

One after another, each on the fleet as the ones before leave it: the replica that is last in most
scenarios is the source; of its trajectories the longest expected, and some of every length, are
tried on the replicas that would end soonest (`_moving`).  Long ones leave for a place of their own,
or short ones make room for a long one: both come out of the same minimum.  Moving is never the
default: it must gain at least `least_gain_s` after all costs, and more than the draws can tell
apart from nothing.
"""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Floats, Ints, Observation
from steersman.policies.adaptive._ends import end_s, loads
from steersman.policies.adaptive._moving import best_move
from steersman.policies.adaptive.outlook import Outlook, free_slots

LONGEST, SPREAD, TARGETS = 24, 24, 12
"""Trajectories tried: the longest of the source, and evenly over its others; and replicas."""
SURE = 1.5
"""Standard errors that a gain must exceed.  With 1 there are six times as many moves and no more
gain; with 2 unlike hardware is evened out too late."""


@dataclass(frozen=True)
class Move:
    """A trajectory, where it goes, and what is expected of that."""

    row: int
    source: int
    target: int
    gain_s: float
    """Mean, over the scenarios, of how much earlier the last replica ends."""
    cost_s: float
    """Hand-over and prefill."""
    behind_s: float
    """By how much the source would end after the mean replica."""


def moves(
    observation: Observation,
    forecast: Forecast,
    outlook: Outlook,
    movable: Ints,
    most: int,
    least_gain_s: float,
) -> list[Move]:
    """At most `most`.  `movable` are running rows."""
    t, alive = observation.trajectories, observation.replicas.alive
    if most <= 0 or not len(movable) or int(alive.sum()) < 2:
        return []
    here = np.where(t.phase != Phase.ENDED, observation.destination_row, NO_ROW)
    room = free_slots(observation, outlook.model.open)
    kv_room = outlook.model.capacity - observation.resident_tokens()
    mean = forecast.length.mean_remaining_tokens
    found: list[Move] = []
    load, extra_s = outlook.load, outlook.load.extra_s.copy()
    for _ in range(most):
        ends: Floats = end_s(outlook.model, load)
        source = _last(ends, outlook.model.by_name)
        candidates = _candidates(movable[here[movable] == source], mean)
        able = outlook.model.by_name[room[outlook.model.by_name] > 0]
        targets = _targets(ends.mean(axis=0), source, able)
        if not len(candidates) or not len(targets):
            break
        handover_s = forecast.throughput.handover_s
        row, target, gain_s, error_s, cost_s = best_move(
            outlook.model, outlook.rows, load, candidates, source, targets, kv_room, handover_s
        )
        if row < 0 or gain_s < max(least_gain_s, SURE * error_s):
            break
        behind_s = float(ends[:, source].mean() - ends[:, alive].mean())
        found.append(Move(int(row), source, int(target), float(gain_s), float(cost_s), behind_s))
        here[row], movable = target, movable[movable != row]
        room[target] -= 1
        room[source] += 1
        kv_room[target] -= outlook.rows.context[row]
        extra_s[target] += outlook.model.prefill_token_s[target] * outlook.rows.context[row]
        load = loads(outlook.rows, here, len(alive), len(observation.groups))
        load = load._replace(extra_s=extra_s)
    return found


def _last(ends: Floats, by_name: Ints) -> int:
    """The replica that is last in most scenarios; ties by name."""
    last = np.bincount(ends[:, by_name].argmax(axis=1), minlength=len(by_name))
    return int(by_name[last.argmax()])


def _candidates(rows: Ints, mean: Floats) -> Ints:
    """The longest, and others evenly over the rest."""
    order = rows[np.lexsort((rows, -mean[rows]))]
    rest = order[LONGEST:]
    if len(rest) > SPREAD:
        rest = rest[np.linspace(0, len(rest) - 1, SPREAD).astype(np.int64)]
    return np.concatenate((order[:LONGEST], rest))


def _targets(mean_end_s: Floats, source: int, able: Ints) -> Ints:
    """Those that would end soonest, before the source."""
    able = able[(able != source) & (mean_end_s[able] < mean_end_s[source])]
    return able[np.argsort(mean_end_s[able], kind="stable")][:TARGETS]
