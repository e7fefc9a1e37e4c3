"""Which groups to put off to the next step, so that the others need not wait for them."""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Bools, Ints, Observation
from steersman.policies.placement._lag import may_go_on
from steersman.policies.placement._load import Load

MOST_GROUPS = 16
"""Groups tried at most per tick: each costs a pass over the fleet's load."""

TAIL_BUDGETS = 4
"""A step is in its tail when its open groups are no more than this many budgets; before that, which
groups will be the latest is not known, and there is time to wait."""


@dataclass(frozen=True)
class Deferral:
    """Rows to park, and what is expected of that."""

    rows: Ints
    groups: int
    """Groups that wait for the next step because of it."""
    gain_s: float
    """Predicted shortening of the step, if the stragglers turn out short."""
    cost_s: float
    """Prefill that resuming them will cost."""


def best_deferral(
    observation: Observation,
    forecast: Forecast,
    elapsed_s: float,
    step_groups: int,
    share: float,
    margin: float,
    max_deferrals: int,
) -> Deferral | None:
    """The deferral that most raises the step's rate of groups, if by more than `margin`.

    Without it the step delivers G groups in E + T seconds (E elapsed, T still to go); with the k
    latest groups put off, G - k in E + T_k.  Worth it when (G - k)/(E + T_k) exceeds G/(E + T) by
    the margin even if the stragglers' remaining lengths are at their lower quantile in T.
    """
    t, count = observation.trajectories, len(observation.groups)
    on_way_out = (t.phase == Phase.LEAVING) & (t.target_row == NO_ROW)
    gone = np.zeros(count, dtype=np.bool_)
    gone[t.group_row[(t.phase == Phase.PARKED) | on_way_out]] = True
    budget = int(share * step_groups) - int(gone.sum())
    left = step_groups - int(gone.sum())
    waits = (observation.destination_row >= 0) & ~gone[t.group_row]
    if not 0 < len(np.unique(t.group_row[waits])) <= TAIL_BUDGETS * budget:
        return None
    order = _latest_groups(observation, forecast, waits, max_deferrals)
    best, best_rate = None, 1.0 + margin
    out = np.zeros(count, dtype=np.bool_)
    for k, group in enumerate(order[: min(budget, MOST_GROUPS)].tolist(), start=1):
        out[group] = True
        rows = waits & out[t.group_row]
        before, after = _end_s(observation, forecast, waits, rows)
        rate = (left - k) / left * (elapsed_s + before) / max(elapsed_s + after, 1e-9)
        if rate > best_rate:
            tokens = (t.prompt_tokens + t.generated_tokens)[rows].sum()
            cost = float(tokens * forecast.throughput.prefill_token_s.mean())
            best, best_rate = Deferral(np.flatnonzero(rows), k, before - after, cost), rate
    return best


def _latest_groups(
    observation: Observation, forecast: Forecast, waits: Bools, max_deferrals: int
) -> Ints:
    """Groups whose every unfinished trajectory may be deferred, the one with most left first."""
    t = observation.trajectories
    may = (t.phase == Phase.RUNNING) & may_go_on(observation) & (t.deferred < max_deferrals)
    open_rows = t.phase != Phase.ENDED
    stuck = np.zeros(len(observation.groups), dtype=np.bool_)
    stuck[t.group_row[open_rows & ~may]] = True
    longest = np.zeros(len(observation.groups))
    np.maximum.at(longest, t.group_row[waits], forecast.length.median[waits])
    able = np.flatnonzero(~stuck & (longest > 0))
    return np.asarray(able[np.lexsort((able, -longest[able]))])


def _end_s(
    observation: Observation, forecast: Forecast, waits: Bools, rows: Bools
) -> tuple[float, float]:
    """Seconds to the fleet's end if `rows` stay but prove short, and if they are put off."""
    length = forecast.length
    low = length.remaining_tokens[:, 0]
    long = np.where(rows, low, length.upper)
    mean = np.where(rows, low, length.mean_remaining_tokens)
    stay = Load.with_lengths(observation, forecast, long, mean, waits)
    leave = Load.with_lengths(observation, forecast, long, mean, waits & ~rows)
    return float(stay.end_s.max(initial=0.0)), float(leave.end_s.max(initial=0.0))
