"""Synthetic observations: small ones written by hand, random ones for properties and benchmarks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from steersman.estimators.contract import LengthEstimator, ThroughputEstimator
from steersman.estimators.forecast import Forecast, LengthForecast, ThroughputForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    AS_REPLICA,
    NO_ROW,
    NO_VERSION,
    EndedTable,
    GroupTable,
    Observation,
    ReplicaTable,
    TrainerSignal,
    TrajectoryTable,
)

STEP_START_S = 1000.0


def replica_table(count: int, **columns: Any) -> ReplicaTable:
    """`count` idle living replicas r0, r1, ... of 32 slots; columns by name override."""
    zeros, noughts = np.zeros(count, dtype=np.int64), np.zeros(count)
    table = ReplicaTable(
        names=tuple(f"r{i}" for i in range(count)),
        pools=("bulk",) * count,
        alive=np.ones(count, dtype=np.bool_),
        running=zeros,
        waiting=zeros,
        kv_cache_usage=noughts,
        kv_capacity_tokens=zeros,
        max_num_seqs=np.full(count, 32),
        preemptions=zeros,
        prefix_hit_share=noughts,
        prefill_tokens=zeros,
        asked_at=np.zeros((count, 0), dtype=np.int64),
        drafted_at=np.zeros((count, 0), dtype=np.int64),
        accepted_at=np.zeros((count, 0), dtype=np.int64),
        draft_tokens=zeros,
        max_draft_tokens=zeros,
        weight_version=zeros,
        iterations=zeros,
        busy_s=noughts,
        sequences_run=noughts,
        metrics_age_s=noughts,
    )
    as_they_are = ("names", "pools")
    given = {n: c if n in as_they_are else np.asarray(c) for n, c in columns.items()}
    return replace(table, **given)


def group_table(count: int, **columns: Any) -> GroupTable:
    """`count` groups of one, of different prompts, admitted in step 0."""
    ids = np.arange(count)
    table = GroupTable(
        group_id=ids,
        prompt_key=ids + 7_000,
        size=np.ones(count, dtype=np.int64),
        ended=0 * ids,
        step=0 * ids,
        rewarded=0 * ids,
        reward_sum=np.zeros(count),
        reward_low=np.full(count, np.inf),
        reward_high=np.full(count, -np.inf),
        features=np.zeros((count, 0)),
    )
    return replace(table, **{name: np.asarray(column) for name, column in columns.items()})


def trajectory_table(phase: Sequence[int], group_size: int = 1, **columns: Any) -> TrajectoryTable:
    """One row per phase, ids 0, 1, ...; groups are runs of `group_size` rows."""
    n = len(phase)
    zeros = np.zeros(n, dtype=np.int64)
    table = TrajectoryTable(
        trajectory_id=np.arange(n),
        group_row=np.arange(n) // group_size,
        phase=np.asarray(phase, dtype=np.int64),
        replica_row=np.full(n, NO_ROW),
        target_row=np.full(n, NO_ROW),
        prompt_tokens=np.full(n, 100),
        generated_tokens=zeros,
        max_new_tokens=np.full(n, 4096),
        queued_s=np.full(n, STEP_START_S),
        placed_s=np.full(n, np.nan),
        moved_s=np.full(n, -np.inf),
        moves=zeros,
        deferred=zeros,
        restarts=zeros,
        turns=zeros,
        oldest_weight_version=np.full(n, NO_VERSION),
        regret=np.full(n, np.nan),
        repeated_share=np.full(n, np.nan),
        draft_tokens=np.full(n, AS_REPLICA),
    )
    return replace(table, **{name: np.asarray(column) for name, column in columns.items()})


def ended_table(generated: Sequence[int], **columns: Any) -> EndedTable:
    """Trajectories that finished with these lengths, each of its own prompt."""
    n = len(generated)
    ids, zeros = np.arange(n), np.zeros(n, dtype=np.int64)
    table = EndedTable(
        trajectory_id=ids + 1_000_000,
        group_id=ids,
        prompt_key=ids,
        prompt_tokens=zeros,
        generated_tokens=np.asarray(generated),
        censored=zeros.astype(np.bool_),
        turns=np.ones(n, dtype=np.int64),
        weight_version=zeros,
    )
    return replace(table, **{name: np.asarray(column) for name, column in columns.items()})


def observation(
    trajectories: TrajectoryTable, replicas: ReplicaTable, now_s: float = STEP_START_S, **more: Any
) -> Observation:
    """Around these two tables; groups as `trajectories.group_row` needs them."""
    rows = trajectories.group_row
    count = int(rows.max()) + 1 if len(rows) else 0
    sizes = np.bincount(rows, minlength=count) if len(rows) else np.zeros(0, dtype=np.int64)
    more.setdefault("groups", group_table(count, size=sizes))
    more.setdefault("trainer", TrainerSignal())
    more.setdefault("tick", 0)
    return Observation(now_s=now_s, trajectories=trajectories, replicas=replicas, **more)


def forecast_of(
    seen: Observation,
    mean: Sequence[float],
    fixed_s: float = 0.01,
    per_sequence_s: float = 0.001,
    spread: float = 0.0,
    prefill_token_s: float = 0.0001,
) -> Forecast:
    """A forecast with these expected remaining tokens and quantiles `spread` (share) around."""
    middle = np.asarray(mean, dtype=np.float64)
    quantiles = np.stack(((1 - spread) * middle, middle, (1 + spread) * middle), axis=1)
    r = len(seen.replicas)
    return replace(
        Forecast.unknown(seen),
        length=LengthForecast(
            quantiles, middle, np.ones_like(quantiles), np.zeros(len(seen.groups))
        ),
        throughput=ThroughputForecast(
            fixed_s=np.full(r, fixed_s),
            per_sequence_s=np.full(r, per_sequence_s),
            sequence_s=np.full(r, per_sequence_s),
            token_s=np.zeros(r),
            knee_s=np.zeros(r),
            kv_capacity_tokens=np.zeros(r),
            prefill_token_s=np.full(r, prefill_token_s),
            handover_s=np.full(r, 0.02),
            relative_error=np.full(r, np.nan),
            samples=np.full(r, 1000),
            verify_s=np.zeros(r),
            verify_token_s=np.full(r, per_sequence_s),
        ),
    )


def known(seen: Observation, length: LengthEstimator, throughput: ThroughputEstimator) -> Forecast:
    """What these two estimators say; nothing is known of the rest."""
    return replace(
        Forecast.unknown(seen), length=length.forecast(seen), throughput=throughput.forecast(seen)
    )


def random_observation(
    rng: np.random.Generator,
    trajectories: int,
    replicas: int,
    phases: Sequence[Phase] = tuple(Phase),
    weights: Sequence[float] | None = None,
    slots: int = 32,
    alive_share: float = 1.0,
    group_size: int = 8,
    **trainer: Any,
) -> Observation:
    """Any legal observation: phases drawn from `phases`, heavy-tailed ages, some replicas dead."""
    n, r = trajectories, replicas
    phase = rng.choice([int(p) for p in phases], size=n, p=weights)
    alive = rng.random(r) < alive_share
    on_replica = np.isin(phase, (Phase.RUNNING, Phase.LEAVING))
    replica_row = np.where(on_replica, rng.integers(0, max(r, 1), n), NO_ROW)
    moving_on = (phase == Phase.LEAVING) & (rng.random(n) < 0.5)
    target_row = np.where(moving_on, rng.integers(0, max(r, 1), n), NO_ROW)
    cap = 16_384
    age = np.minimum(np.exp(rng.normal(6.5, 1.2, n)).astype(np.int64), cap - 1)
    fresh = (phase == Phase.QUEUED) & (rng.random(n) < 0.8)
    age = np.where(fresh, 0, age)
    now_s = STEP_START_S + 60.0
    table = trajectory_table(
        phase,
        group_size,
        replica_row=replica_row,
        target_row=target_row,
        prompt_tokens=rng.integers(10, 2000, n),
        generated_tokens=age,
        max_new_tokens=np.full(n, cap),
        queued_s=now_s - rng.random(n) * 60,
        placed_s=np.where(on_replica, now_s - rng.random(n) * 50, np.nan),
        moved_s=np.where(rng.random(n) < 0.2, now_s - rng.random(n) * 40, -np.inf),
        deferred=(rng.random(n) < 0.1).astype(np.int64),
        restarts=np.zeros(n, dtype=np.int64),
        oldest_weight_version=np.where(age > 0, rng.integers(3, 6, n), NO_VERSION),
    )
    inflight = (
        np.bincount(replica_row[replica_row >= 0], minlength=r)
        if r
        else np.zeros(0, dtype=np.int64)
    )
    trainer.setdefault("weight_version", 5)
    return observation(
        table,
        replica_table(
            r,
            alive=alive,
            max_num_seqs=np.full(r, slots),
            running=np.minimum(inflight, slots),
            waiting=np.maximum(inflight - slots, 0),
            iterations=rng.integers(0, 10_000, r),
            busy_s=rng.random(r) * 100,
            sequences_run=rng.random(r) * 100_000,
        ),
        now_s=now_s,
        trainer=TrainerSignal(**trainer),
        tick=int(rng.integers(0, 1000)),
    )
