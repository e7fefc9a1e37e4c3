"""The one move that most lowers the mean, over scenarios, of when the last replica ends.  Compiled.

Gains are paired: both plans are looked at in the same scenarios, so that what no plan can change
cancels.
"""

import numba
import numpy as np

from steersman.policies.adaptive._ends import area_of, end_s, one_end_s


@numba.njit(cache=True, nogil=True)
def best_move(  # type: ignore[no-untyped-def]
    model, rows, load, candidates, source, targets, kv_room, handover_s
):
    """Of `candidates`, all on `source`, to `targets`.

    Whoever moves stands still for the hand-over and its prefill, which the target also pays.
    Answers row, target, mean gain in seconds, its standard error, seconds of the cost; row -1: none
    gains anything.
    """
    scenarios = rows.length.shape[0]
    ends = end_s(model, load)
    now, top, at_top, next_ = _without(ends, source)
    left = np.empty(scenarios)
    best_row, best_target, best_gain, best_error, best_cost = -1, -1, 0.0, 0.0, 0.0
    for i in candidates:
        for s in range(scenarios):
            x = rows.length[s, i]
            is_longest = rows.chain[s, i] >= load.longest[s, source]
            rest = load.second[s, source] if is_longest else load.longest[s, source]
            left[s] = one_end_s(
                model, source, rest, load.total[s, source] - x,
                load.area[s, source] - area_of(rows, s, i), load.extra_s[source],
            )  # fmt: skip
        for r in targets:
            if rows.context[i] > kv_room[r]:
                continue
            cost_s = handover_s[r] + model.prefill_token_s[r] * rows.context[i]
            mean, square = 0.0, 0.0
            for s in range(scenarios):
                x = rows.length[s, i]
                there = one_end_s(
                    model, r, max(load.longest[s, r], rows.chain[s, i] + cost_s / model.fixed_s[r]),
                    load.total[s, r] + x, load.area[s, r] + area_of(rows, s, i),
                    load.extra_s[r] + cost_s - handover_s[r],
                )  # fmt: skip
                others = next_[s] if at_top[s] == r else top[s]
                gain = now[s] - max(others, left[s], there)
                mean += gain / scenarios
                square += gain * gain / scenarios
            if mean > best_gain:
                best_row, best_target, best_gain, best_cost = i, r, mean, cost_s
                best_error = np.sqrt(max(square - mean * mean, 0.0) / scenarios)
    return best_row, best_target, best_gain, best_error, best_cost


@numba.njit(cache=True, nogil=True)
def _without(ends, source):  # type: ignore[no-untyped-def]
    """(S,) the last end; the last without the source, whose it is, and the last but one."""
    scenarios, replicas = ends.shape
    now, top, next_ = np.zeros(scenarios), np.zeros(scenarios), np.zeros(scenarios)
    at_top = np.full(scenarios, -1)
    for s in range(scenarios):
        for r in range(replicas):
            now[s] = max(now[s], ends[s, r])
            if r == source:
                continue
            if ends[s, r] > top[s]:
                next_[s], top[s], at_top[s] = top[s], ends[s, r], r
            elif ends[s, r] > next_[s]:
                next_[s] = ends[s, r]
    return now, top, at_top, next_
