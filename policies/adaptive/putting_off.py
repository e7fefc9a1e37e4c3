"""Whether the groups that are still open shall go on in the next step instead.

What is put off is not lost: it is written in the next step, beside others, where a token costs its
share of a batch (c) and not a whole iteration (M).  So once no more groups are open than may be put
off, the step could end now:

    gain = mean over scenarios of when the last replica would end, less when it would without them
    cost = c and k times the remaining tokens, and the prefill of everything written, over the fleet

and it is worth it when gain > cost * `WORTH` + `least_gain_s`.  All that may be put off goes, or
nothing: one group more that stays makes the step wait as long.  Groups are put off whole, each at
most once, and only where the lag bound lets newer weights write the rest: correctness class
"corrected".  What was put off before, or may not be, is waited for.
"""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Ints, Observation
from steersman.policies.adaptive._ends import loads
from steersman.policies.adaptive.outlook import Outlook
from steersman.policies.placement._lag import may_go_on

WORTH = 2.0
"""Seconds that the step must end earlier for each second that the next ends later at most: samples
by newer weights are worth less, and nobody knows by how much."""
MOST_DEFERRALS = 1


@dataclass(frozen=True)
class PuttingOff:
    """Rows to park."""

    rows: Ints
    groups: int
    gain_s: float
    cost_s: float


def putting_off(
    observation: Observation,
    forecast: Forecast,
    outlook: Outlook,
    step_groups: int,
    share: float,
    least_gain_s: float,
) -> PuttingOff | None:
    """All that is open, if it may and is worth it; `step_groups` is how many the step has."""
    t = observation.trajectories
    open_rows = np.flatnonzero(t.phase != Phase.ENDED)
    parked = np.unique(t.group_row[open_rows[t.phase[open_rows] == Phase.PARKED]])
    waits = open_rows[t.phase[open_rows] != Phase.PARKED]
    groups = np.unique(t.group_row[waits])
    if not len(groups) or len(groups) + len(parked) > share * step_groups:
        return None
    able = (t.phase[waits] == Phase.RUNNING) & (t.deferred[waits] < MOST_DEFERRALS)
    able &= may_go_on(observation)[waits]
    stuck = np.zeros(len(observation.groups), dtype=np.bool_)
    stuck[t.group_row[waits[~able]]] = True
    rows = waits[~stuck[t.group_row[waits]]]
    if not len(rows):
        return None
    gain_s = _gain_s(observation, outlook, rows)
    f, here = forecast.throughput, t.replica_row[rows]
    left, context = forecast.length.mean_remaining_tokens[rows], outlook.rows.context[rows]
    work_s = f.sequence_s[here] * left + f.token_s[here] * left * (context + 0.5 * left)
    work_s += f.prefill_token_s[here] * context
    cost_s = float(work_s.sum()) / max(int(observation.replicas.alive.sum()), 1)
    if gain_s <= WORTH * cost_s + least_gain_s:
        return None
    return PuttingOff(rows, len(np.unique(t.group_row[rows])), gain_s, cost_s)


def _gain_s(observation: Observation, outlook: Outlook, rows: Ints) -> float:
    """Mean over the scenarios of how much sooner the last replica ends without `rows`."""
    t = observation.trajectories
    here = np.where(t.phase != Phase.ENDED, observation.destination_row, NO_ROW)
    here[rows] = NO_ROW
    rest = loads(outlook.rows, here, len(observation.replicas), len(observation.groups))
    return float((outlook.last_s(outlook.load) - outlook.last_s(rest)).mean())
