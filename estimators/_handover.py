"""How long a migrated trajectory is nowhere: from leaving its source to starting on its target.

Each move that is over gives one duration, `moved_s` to `placed_s`.  Averaged as logarithms, for one
abort that waits for a dying engine must not price all moves; per target on top of the fleet's mean,
that on top of `PRIOR_S`; old moves fade.  A move that began in the queue or waited there is none.
"""

import numpy as np

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Observation

PRIOR_S = 0.02
"""Two hops to a replica and its next iteration: 6-20 ms measured on a local Ray cluster."""
PRIOR_MOVES = 0.5
"""Moves that `PRIOR_S` counts for in the fleet's mean: machines differ more than moves on one."""
FLEET_MOVES = 2.0
"""Moves that the fleet's mean counts for in a replica's."""
KEEP = 0.95
"""Of the evidence, per observation with a move onto the replica."""
SHORTEST_S = 1e-4
"""Anything shorter was not measured: both times come from one event."""


def moves_seen(observation: Observation, since_s: float) -> Floats:
    """(r, 2) number and total log seconds of the moves onto each replica ended after `since_s`."""
    t, count = observation.trajectories, len(observation.replicas)
    took = t.placed_s - t.moved_s
    direct = (t.phase == Phase.RUNNING) & (t.moves > 0) & (t.queued_s < t.moved_s)
    rows = np.flatnonzero(direct & (took >= SHORTEST_S) & (t.placed_s > since_s))
    onto = t.replica_row[rows]
    number = np.bincount(onto, minlength=count)
    return np.stack((number, np.bincount(onto, np.log(took[rows]), count)), axis=1)


def fade(evidence: Floats, seen: Floats) -> Floats:
    """(r, 2) evidence with what was seen added."""
    return np.asarray(np.where(seen[:, :1] > 0, KEEP, 1.0) * evidence + seen)


def handover_s(evidence: Floats) -> Floats:
    """(r,) seconds, from (r, 2) evidence."""
    number, log_s = evidence.T
    fleet = (PRIOR_MOVES * np.log(PRIOR_S) + log_s.sum()) / (PRIOR_MOVES + number.sum())
    return np.asarray(np.exp((FLEET_MOVES * fleet + log_s) / (FLEET_MOVES + number)))
