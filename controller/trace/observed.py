"""A whole observation as one record, and back, without losing a bit.

JSON knows neither NaN nor infinity, so these three travel as the texts "nan", "inf" and "-inf".
"""

import math
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from steersman.controller.trace._record import Base
from steersman.estimators.observation import (
    AS_REPLICA,
    Advice,
    EndedTable,
    GroupTable,
    Observation,
    ReplicaTable,
    RewardTable,
    TrainerSignal,
    TrajectoryTable,
)

TWO_DIMENSIONAL = ("features", "asked_at", "drafted_at", "accepted_at")
ADDED: dict[type, dict[str, Any]] = {
    TrajectoryTable: {"regret": "nan", "repeated_share": "nan", "draft_tokens": AS_REPLICA},
    ReplicaTable: {"draft_tokens": 0, "max_draft_tokens": 0, "asked_at": []},
}
"""Columns that the first traces do not have, and what they would have said."""
Column = list[Any]
"""Numbers or texts, or lists of them where the array has two dimensions."""


class AdviceRecorded(msgspec.Struct, frozen=True):
    """`Advice`, which see."""

    step: int
    asked_s: float
    plans: list[str]
    mean_s: Column
    error_s: Column


class ObservationRecorded(Base, frozen=True, kw_only=True):
    """The snapshot of one tick; `t_s` is its `now_s`."""

    tick: int
    trainer: TrainerSignal
    trajectories: dict[str, Column]
    """Columns of `TrajectoryTable` by name; so for the others."""
    groups: dict[str, Column]
    replicas: dict[str, Column]
    ended: dict[str, Column]
    rewarded: dict[str, Column]
    advice: AdviceRecorded | None = None
    """None where no look ahead was due, and in the first traces."""


def observation_to_record(observation: Observation) -> ObservationRecorded:
    """The record of an observation.  About 60 ns per value."""
    return ObservationRecorded(
        t_s=observation.now_s,
        tick=observation.tick,
        trainer=observation.trainer,
        trajectories=_columns(observation.trajectories),
        groups=_columns(observation.groups),
        replicas=_columns(observation.replicas),
        ended=_columns(observation.ended),
        rewarded=_columns(observation.rewarded),
        advice=_recorded(observation.advice),
    )


def record_to_observation(record: ObservationRecorded) -> Observation:
    """The observation that was recorded, equal to the original to the bit."""
    return Observation(
        now_s=record.t_s,
        tick=record.tick,
        trainer=record.trainer,
        trajectories=TrajectoryTable(**_arrays(TrajectoryTable, record.trajectories)),
        groups=GroupTable(**_arrays(GroupTable, record.groups)),
        replicas=ReplicaTable(**_arrays(ReplicaTable, record.replicas)),
        ended=EndedTable(**_arrays(EndedTable, record.ended)),
        rewarded=RewardTable(**_arrays(RewardTable, record.rewarded)),
        advice=_advice(record.advice),
    )


def _recorded(advice: Advice | None) -> AdviceRecorded | None:
    if advice is None:
        return None
    return AdviceRecorded(
        step=advice.step,
        asked_s=advice.asked_s,
        plans=list(advice.plans),
        mean_s=_listed(advice.mean_s),
        error_s=_listed(advice.error_s),
    )


def _advice(record: AdviceRecorded | None) -> Advice | None:
    if record is None:
        return None
    mean_s, error_s = (np.array(c, dtype=np.float64) for c in (record.mean_s, record.error_s))
    return Advice(record.step, record.asked_s, tuple(record.plans), mean_s, error_s)


def _columns(table: Any) -> dict[str, Column]:
    return {field.name: _listed(getattr(table, field.name)) for field in fields(table)}


def _listed(column: Any) -> Column:
    if isinstance(column, tuple):
        return list(column)
    values: Column = column.tolist()
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        return _texts(values)
    return values


def _texts(values: Column) -> Column:
    return [_texts(v) if isinstance(v, list) else v if math.isfinite(v) else str(v) for v in values]


def _arrays(table: type, columns: dict[str, Column]) -> dict[str, Any]:
    hints = get_type_hints(table)
    rows = len(next(iter(columns.values()), []))
    added = {name: [value] * rows for name, value in ADDED.get(table, {}).items()}
    return {name: _restored(name, c, hints[name]) for name, c in {**added, **columns}.items()}


def _restored(name: str, column: Column, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return tuple(column)
    scalar = get_args(get_args(hint)[1])[0]
    # numpy reads the three texts as floats; integers must not pass through them, they have 63 bits
    array = np.array(column, dtype=scalar)
    return array.reshape(len(column), -1 if column else 0) if name in TWO_DIMENSIONAL else array
