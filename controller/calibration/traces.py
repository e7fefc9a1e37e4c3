"""Steps from a trace of this project: the groups as they were asked, and what became of them.

A trajectory belongs to the step that admitted its group, also when it was deferred and ended later.
One that was restarted, stopped or abandoned is known only up to there: it censors, and no forecast
is held to it.
"""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from steersman.controller.calibration.steps import Step
from steersman.controller.trace import records
from steersman.controller.trace.reader import read
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import Disposition, Phase

WHOLE = {Disposition.FINISHED.value, Disposition.TRUNCATED.value}


def steps_from_trace(path: Path) -> list[Step]:
    """All steps that ended anything, in order."""
    groups: dict[int, records.GroupAdmitted] = {}
    members: dict[int, list[records.TrajectoryEnded]] = defaultdict(list)
    rewards: dict[int, float] = {}
    running, peak, step = 0, Counter[int](), 0
    for record in read(path):
        match record:
            case records.StepStarted():
                step = record.step
            case records.GroupAdmitted():
                groups[record.group_id] = record
            case records.PhaseChanged():
                running += (record.new == Phase.RUNNING.name) - (record.old == Phase.RUNNING.name)
                peak[step] = max(peak[step], running)
            case records.TrajectoryEnded():
                members[groups[record.group_id].step].append(record)
            case records.Rewarded():
                rewards[record.trajectory_id] = record.reward
    if not members:
        raise InvalidInputError(f"{path}: nothing has ended in this trace")
    return [_step(groups, members[step], rewards, max(peak[step], 1)) for step in sorted(members)]


def _step(
    groups: dict[int, records.GroupAdmitted],
    members: list[records.TrajectoryEnded],
    rewards: dict[int, float],
    concurrency: int,
) -> Step:
    members = sorted(members, key=lambda record: record.trajectory_id)
    ids = sorted({record.group_id for record in members})
    row = {group_id: i for i, group_id in enumerate(ids)}
    length = np.array([max(record.generated_tokens, 1) for record in members])
    whole = np.array([record.disposition in WHOLE for record in members])
    width = max(len(groups[i].features) for i in ids)
    features = [[*groups[i].features, *[0.0] * (width - len(groups[i].features))] for i in ids]
    cap = np.array([groups[record.group_id].max_new_tokens for record in members])
    return Step(
        prompt_key=np.array([groups[i].prompt_key for i in ids]),
        group_row=np.array([row[record.group_id] for record in members]),
        length=length + ~whole,  # at least one more than what is known
        truncated=np.array([r.disposition == Disposition.TRUNCATED.value for r in members]),
        max_new_tokens=np.maximum(cap, length + ~whole),
        reward=np.array([rewards.get(record.trajectory_id, np.nan) for record in members]),
        cut_at=np.where(whole, np.inf, length),
        scored=whole,
        features=np.array(features, dtype=np.float64).reshape(len(ids), width),
        turns=np.ones(len(members), dtype=np.int64),
        concurrency=concurrency,
    )
