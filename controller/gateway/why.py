"""Why the fleet is where it is: the straggler in a sentence, and the last decisions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from steersman.controller.explain.story import patterns
from steersman.controller.gateway.state import Straggler, TrajectoryState, Why
from steersman.controller.watching.ends import Ends
from steersman.controller.watching.record_counts import RecordCounts
from steersman.controller.watching.told import Told
from steersman.estimators.observation import Ints, Observation

DECISIONS = 12
"""Told in full: what fits beside the rest of a page."""
RECENT_S = 20.0
"""A decision older than this no longer explains where its trajectory is."""
OBJECTIONS = 5
"""Reasons of the guard that are told, the most frequent."""
NOTABLE = 0.15
"""Share of a straggler's time from which its neighbours are mentioned."""


@dataclass(frozen=True)
class Shown:
    """What the explanation rests on."""

    observation: Observation
    ends: Ends
    rows: Ints
    """Of what somebody waits for, the last to end first."""
    now_s: float


def why_of(shown: Shown, trajectories: Sequence[TrajectoryState], counts: RecordCounts) -> Why:
    """`trajectories` are those of the first rows."""
    choice = counts.stack
    return Why(
        straggler=_straggler(shown, trajectories),
        decisions=last_decisions(counts),
        alternatives=counts.weighed,
        stack="" if choice is None else f"{choice.stack}: {choice.reason}",
        objections=_objections(shown, counts),
    )


def last_decisions(counts: RecordCounts) -> list[Told]:
    """Newest first; of those that repeat (a shadow's never take effect) only the newest."""
    chosen: dict[tuple[int, str], Told] = {}
    for told in chain(reversed(counts.recent), reversed(counts.placements)):
        if len(chosen) == DECISIONS:
            break
        chosen.setdefault((told.trajectory_id, told.action), told)
    return sorted(chosen.values(), key=lambda told: -told.t_s)


def recent_reasons(counts: RecordCounts, now_s: float) -> Mapping[int, str]:
    """By trajectory: what was last decided about it, if that is not long ago."""
    return {
        told.trajectory_id: f"{told.action} ({told.became}): {told.reason}"
        for told in counts.recent
        if now_s - told.t_s <= RECENT_S
    }


def _straggler(shown: Shown, trajectories: Sequence[TrajectoryState]) -> Straggler | None:
    end = shown.ends.ends_in_s[shown.rows]
    end = end[np.isfinite(end)]
    if not len(end):
        return None
    last, row = trajectories[0], int(shown.rows[0])
    ends_in_s = float(end[0])
    after_next_s = ends_in_s - float(end[1]) if len(end) > 1 else ends_in_s
    after_middle_s = ends_in_s - float(np.median(end))
    sharing_s = max(ends_in_s - float(shown.ends.alone_s[row]), 0.0)
    where = last.target or last.replica
    at = shown.observation.destination_row
    neighbours = int((at == at[row]).sum()) - 1
    return Straggler(
        trajectory_id=last.trajectory_id,
        replica=where,
        ends_in_s=ends_in_s,
        after_next_s=after_next_s,
        after_middle_s=after_middle_s,
        sharing_s=sharing_s,
        sentence=" ".join(
            (
                _when(last, where, ends_in_s),
                _how_late(len(end), after_next_s, after_middle_s),
                _what_for(last, neighbours, sharing_s, ends_in_s),
            )
        ).strip(),
    )


def _when(last: TrajectoryState, where: str, ends_in_s: float) -> str:
    upper = last.ends_in_upper_s
    worst = f", in the worst tenth of cases after {seconds(upper)}" if upper else ""
    return (
        f"Trajectory {last.trajectory_id} on {where} ends last: in about "
        f"{seconds(ends_in_s)}{worst}."
    )


def _how_late(count: int, after_next_s: float, after_middle_s: float) -> str:
    if count == 1:
        return "Nothing else runs."
    if count == 2:
        return f"That is {seconds(after_next_s)} after the other one."
    return (
        f"That is {seconds(after_next_s)} after the next one and {seconds(after_middle_s)} "
        f"after the middle one of {count}."
    )


def _what_for(last: TrajectoryState, neighbours: int, sharing_s: float, ends_in_s: float) -> str:
    left = last.remaining_tokens or 0.0
    text = f"It has written {last.generated_tokens:,} tokens; about {left:,.0f} are left."
    if sharing_s >= NOTABLE * ends_in_s and neighbours:
        others = "another one" if neighbours == 1 else f"{neighbours} others"
        text += f" {seconds(sharing_s)} of its time is the price of sharing with {others}."
    elif neighbours == 0:
        text += " It runs there alone: only a faster engine or a shorter answer would help."
    else:
        text += " It is its own length that counts, not its neighbours."
    return text


def seconds(value_s: float) -> str:
    """For a person: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if value_s < 10:
        return f"{value_s:.1f} s"
    whole = round(value_s)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _objections(shown: Shown, counts: RecordCounts) -> dict[str, int]:
    pattern = patterns(shown.observation.replicas.names)
    late = (told for told in counts.dropped if shown.now_s - told.t_s <= RECENT_S)
    return dict(Counter(pattern(told.dropped) for told in late).most_common(OBJECTIONS))
