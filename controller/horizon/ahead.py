"""Looking ahead: each plan for what waits, run to the end of the step in drawn futures.

The present state is copied into the simulator's core once for every plan and scenario (`worlds`).
Scenarios are lengths drawn from the forecast, the same for every plan (common random numbers), so
that the difference of two plans is known far better than either's end.  What runs stays where it
is; a plan says only how what waits is admitted:

- not held: all of it now, each to the replica with the fewest in flight;
- held: piece by piece, as `held` says.

What runs is not moved, which a controller may well do; the look ahead is repeated as things turn
out otherwise.
"""

from collections.abc import Sequence

import numpy as np

from steersman.controller.horizon.held import Held
from steersman.controller.horizon.worlds import Worlds
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Advice, Floats, Ints, Objective, Observation
from steersman.policies.adaptive.draws import scenarios as drawn
from steersman.policies.adaptive.order import ordered
from steersman.policies.adaptive.plans import Plan

SCENARIOS = 8
LEAST_SCENARIOS = 4
"""Two antithetic pairs: with one, nothing tells how far off the mean is."""
MOST_ROWS = 400_000
"""Trajectories simulated at once, in all plans and scenarios: about three seconds."""


def look_ahead(
    observation: Observation,
    forecast: Forecast,
    plans: Sequence[Plan],
    scenarios: int = SCENARIOS,
) -> Advice | None:
    """What each of p plans would make of the step; the first is compared to.

    None where there is nothing to say: nothing waits, nobody is alive, or the step is over before
    everything has ended.  `scenarios` is even, 4 or more; fewer are drawn for many trajectories.
    Pure: same arguments, same bytes.
    """
    trainer = observation.trainer
    whole = trainer.objective is Objective.BARRIER and not trainer.groups_wanted
    if not (plans and whole and len(observation.queued) and observation.replicas.alive.any()):
        return None
    end_s = simulated_ends(observation, forecast, plans, scenarios)
    return Advice(
        step=trainer.step,
        asked_s=observation.now_s,
        plans=tuple(plan.name for plan in plans),
        mean_s=end_s.mean(axis=1),
        error_s=paired_error(end_s),
    )


def paired_error(end_s: Floats) -> Floats:
    """(p,) standard error of the mean of (p, s) differences to the first row; columns i and
    s / 2 + i are antithetic, so only their means are independent."""
    difference = end_s - end_s[0]
    half = end_s.shape[1] // 2
    pairs = (difference[:, :half] + difference[:, half:]) / 2
    return np.asarray(pairs.std(axis=1, ddof=1) / np.sqrt(half))


def simulated_ends(
    observation: Observation, forecast: Forecast, plans: Sequence[Plan], scenarios: int
) -> Floats:
    """(p, s) seconds until everything has ended; fewer scenarios than asked for where it would
    take too long."""
    rows = _taking_part(observation)
    affordable = MOST_ROWS // (len(plans) * len(rows)) // 2 * 2
    count = min(scenarios, max(affordable, LEAST_SCENARIOS))
    remaining = np.maximum(drawn(observation, forecast, rows, count), 1.0)
    worlds = Worlds(observation, forecast, rows, np.tile(remaining, (len(plans), 1)))
    for number, plan in enumerate(plans):
        if not plan.hold:
            at_once = np.searchsorted(rows, ordered(plan.order, observation, forecast))
            target = _fewest(observation.inflight()[worlds.living], len(at_once))
            for world in range(number * count, (number + 1) * count):
                worlds.send(np.full(len(at_once), world), at_once, target)
    if any(plan.hold for plan in plans):
        Held(observation, forecast, rows, plans, count).run(worlds)
    worlds.advance(np.inf)
    return np.asarray(worlds.ends_s.max(axis=1).reshape(len(plans), count))


def _taking_part(observation: Observation) -> Ints:
    """(n,) rows that wait, or are on a living replica or on their way to one."""
    t, at = observation.trajectories, observation.destination_row
    alive = np.append(observation.replicas.alive, False)  # NO_ROW is the last
    there = np.isin(t.phase, (Phase.RUNNING, Phase.LEAVING)) & (at != NO_ROW) & alive[at]
    return np.flatnonzero(there | (t.phase == Phase.QUEUED))


def _fewest(inflight: Ints, wanted: int) -> Ints:
    """(wanted,) replicas, each that with the fewest at that moment, the first of equals."""
    level = -(-(int(inflight.sum()) + wanted) // len(inflight))
    nth = np.arange(max(level - int(inflight.min()), 1))
    after = (inflight[:, None] + nth).ravel()
    chosen = np.argsort(after, kind="stable")[:wanted]  # row by row, so of equals the first
    return np.asarray(chosen // len(nth))
