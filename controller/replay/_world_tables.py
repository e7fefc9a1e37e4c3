"""A replay's books as the tables of an observation."""

import numpy as np

from steersman.controller.replay._books import Books
from steersman.controller.replay._drafting import Drafting
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.workload import NOT_TOLD
from steersman.estimators.observation import (
    ONLY_AS_REPLICA,
    Bools,
    EndedTable,
    Floats,
    GroupTable,
    Ints,
    ReplicaTable,
    RewardTable,
    TrajectoryTable,
)
from steersman.mechanisms.simulated.core import SimulatedCore

LOOKED_AT = 256
"""Last tokens of which `repeated_share` tells the share that repeats."""


def trajectory_table(books: Books, rows: Ints, group_row: Ints) -> TrajectoryTable:
    """`rows`, whose groups' rows in the observation are `group_row` (of all groups)."""
    i, f = books.ints, books.floats
    return TrajectoryTable(
        trajectory_id=rows,
        group_row=group_row[i["group"][rows]],
        phase=i["phase"][rows],
        replica_row=i["replica"][rows],
        target_row=i["target"][rows],
        prompt_tokens=i["prompt_tokens"][rows],
        generated_tokens=i["generated"][rows],
        max_new_tokens=i["cap"][rows],
        queued_s=f["queued_s"][rows],
        placed_s=f["placed_s"][rows],
        moved_s=f["moved_s"][rows],
        moves=i["moves"][rows],
        deferred=i["deferred"][rows],
        restarts=i["restarts"][rows],
        turns=i["turns"][rows],
        oldest_weight_version=i["version"][rows],
        regret=_regret(books, rows),
        repeated_share=_repeated_share(books, rows),
        draft_tokens=np.full(len(rows), ONLY_AS_REPLICA),
    )


def _regret(books: Books, rows: Ints) -> Floats:
    """The level of whoever wrote since the last observation."""
    i = books.ints
    wrote = i["generated"][rows] > i["seen"][rows]
    i["seen"][rows] = i["generated"][rows]
    return np.where(wrote, books.floats["regret"][rows], np.nan)


def _repeated_share(books: Books, rows: Ints) -> Floats:
    begin = books.ints["loops_from"][rows]
    looping = (books.ints["generated"][rows] - begin) / LOOKED_AT
    share = np.where(begin >= 0, np.clip(looping, 0.0, 1.0), 0.0)
    return np.where(begin == NOT_TOLD, np.nan, share)


def group_table(books: Books, rows: Ints) -> GroupTable:
    """The groups of `rows`."""
    g, f = books.group_ints, books.group_floats
    return GroupTable(
        group_id=rows,
        prompt_key=g["key"][rows],
        size=g["size"][rows],
        ended=g["ended"][rows],
        step=g["step"][rows],
        rewarded=g["rewarded"][rows],
        reward_sum=f["reward_sum"][rows],
        reward_low=f["reward_low"][rows],
        reward_high=f["reward_high"][rows],
        features=np.zeros((len(rows), 0)),
    )


def ended_table(books: Books, rows: Ints) -> EndedTable:
    """Those of `rows` (m,), however they ended."""
    i = books.ints
    whole = (i["generated"][rows] >= i["length"][rows]) & (i["length"][rows] < i["cap"][rows])
    return EndedTable(
        trajectory_id=rows,
        group_id=i["group"][rows],
        prompt_key=books.group_ints["key"][i["group"][rows]],
        prompt_tokens=i["prompt_tokens"][rows],
        generated_tokens=i["generated"][rows],
        censored=~whole,
        turns=i["turns"][rows] + whole,
        weight_version=i["version"][rows],
    )


def reward_table(books: Books, rows: Ints) -> RewardTable:
    """A replay knows a reward as soon as its trajectory has ended."""
    i, f = books.ints, books.floats
    known = rows[np.isfinite(f["reward"][rows])]
    group = i["group"][known]
    return RewardTable(
        trajectory_id=known,
        group_id=group,
        prompt_key=books.group_ints["key"][group],
        group_size=books.group_ints["size"][group],
        reward=f["reward"][known],
        weight_version=i["version"][known],
    )


def replica_table(
    core: SimulatedCore,
    plan: FleetPlan,
    drafting: Drafting,
    present: Bools,
    weight_version: int,
    forgiven: Ints,
) -> ReplicaTable:
    """The simulated engines' figures, as live ones report them, never late."""
    s, r = core.state(), plan.replicas
    capacity = plan.kv_capacity_tokens
    drafted, accepted = drafting.counts(s.sequences_run)
    return ReplicaTable(
        names=plan.names,
        pools=plan.pool_of,
        alive=s.alive.astype(np.bool_) & present,
        running=s.running.astype(np.int64),
        waiting=s.waiting.astype(np.int64),
        kv_cache_usage=np.where(capacity > 0, s.kv_tokens / np.maximum(capacity, 1), 0.0),
        kv_capacity_tokens=capacity,
        max_num_seqs=plan.slots,
        preemptions=s.preemptions.astype(np.int64) - forgiven,
        prefix_hit_share=np.zeros(r),
        prefill_tokens=s.prefill_tokens.astype(np.int64),
        asked_at=drafted,
        drafted_at=drafted,
        accepted_at=accepted,
        draft_tokens=drafting.tokens.copy(),
        max_draft_tokens=np.full(r, drafting.most),
        weight_version=np.full(r, weight_version),
        iterations=s.iterations.astype(np.int64),
        busy_s=s.busy_s,
        sequences_run=s.sequences_run,
        metrics_age_s=np.zeros(r),
    )
