"""The core's state: a few arrays of records, so that one event touches few cache lines.

Rows are never reused.  Arrays grow by doubling; what lies beyond the rows in use is not looked at.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.mechanisms.simulated.spec import ReplicaSpec, Trajectories

Records = NDArray[np.void]

NONE = -1
"""No row."""

TRAJECTORY = np.dtype(
    [
        ("prompt_tokens", "f8"),
        ("given_tokens", "f8"),  # prompt, and what waits have appended
        ("encode_s", "f8"),
        ("generated", "f8"),  # while it runs: as it was at `entered_v`
        ("goal", "f8"),  # `generated` at the end of the present turn
        ("entered_v", "f8"),  # the replica's virtual time when it joined the batch
        ("ready_s", "f8"),  # not in any queue before
        ("kept_stamp", "f8"),  # as `stamp` below, of its own context
        ("group", "i4"),
        ("turn", "i4"),  # row of the present turn
        ("last_turn", "i4"),
        ("replica", "i4"),
        ("prefix", "i4"),  # row of its prompt on its replica
        ("kept_on", "i4"),  # replica whose prefix cache may hold its own context
        ("next", "i4"),  # neighbours in the queue it stands in
        ("previous", "i4"),
        ("status", "i4"),
    ],
    align=True,
)
TURN = np.dtype([("tokens", "f8"), ("wait_s", "f8"), ("extra", "f8")])
REPLICA = np.dtype(
    [
        # what it is, at its own speed
        ("fixed_s", "f8"),
        ("sequence_s", "f8"),
        ("token_s", "f8"),
        ("knee_token_s", "f8"),
        ("knee_tokens", "f8"),
        ("prefill_token_s", "f8"),
        ("prefill_step_s", "f8"),
        ("request_s", "f8"),
        ("speed", "f8"),
        ("tokens_per_iteration", "f8"),
        ("cost_factor", "f8"),
        ("capacity", "f8"),
        ("admit_below", "f8"),
        ("prefix_cache", "f8"),
        ("max_num_seqs", "i8"),
        ("keeps_kv", "i8"),
        ("tabled", "i8"),  # whether its row of `State.batch_s` counts, not `sequence_s`
        # where it stands
        ("now_s", "f8"),  # the figures below are of this time
        ("v", "f8"),  # virtual time: tokens served to each sequence that ran all along
        ("kv", "f8"),
        ("debt_s", "f8"),  # seconds of prefill that all running ones still have to wait for
        ("owed_tokens", "f8"),  # tokens in that debt
        ("written", "f8"),  # tokens ever put into the KV cache: the prefix cache's clock
        ("forgotten", "f8"),  # `written` when the prefix cache was last emptied
        ("running", "i8"),
        ("admissions", "i8"),
        ("base_s", "f8"),  # seconds of an iteration of these `running` without context
        ("alive", "i8"),
        ("paused", "i8"),
        ("next_kind", "i8"),
        # since the start
        ("iterations", "f8"),
        ("busy_s", "f8"),
        ("sequences_run", "f8"),
        ("prefill_tokens", "f8"),
        ("preemptions", "i8"),
    ]
)
TIMES = (
    "fixed_s", "sequence_s", "token_s", "knee_token_s", "prefill_token_s", "prefill_step_s",
    "request_s", "debt_s",
)  # fmt: skip
"""What a replica's speed divides: columns of `REPLICA`."""
FINISH = np.dtype(
    [
        ("v", "f8"),  # the replica's virtual time when the turn is written
        ("row", "i4"),
        ("admission", "i4"),  # the replica's count of admissions when it joined the batch
    ]
)
QUEUE = np.dtype([("head", "i8"), ("tail", "i8"), ("count", "i8")])
PREFIX = np.dtype(
    [
        ("stamp", "f8"),  # the replica's `written` when the prompt was last used there
        ("users", "i4"),  # running sequences that hold it
        ("replica", "i4"),
        ("next", "i4"),  # the same group's prompt on another replica
    ],
    align=True,
)
EVENT = np.dtype([("time_s", "f8"), ("kind", "i8"), ("row", "i8"), ("replica", "i8")])


class State(NamedTuple):
    """n trajectories, m turns, r replicas of at most s slots, g groups, p prompts on replicas.

    Numba counts references to every array here, used or not: one more made the core 5 % slower.
    """

    trajectories: Records
    """(n,)"""
    turns: Records
    """(m,)"""
    replicas: Records
    """(r,)"""
    next_s: NDArray[np.float64]
    """(r,) when each replica's next event is due; inf: nothing is."""
    heap: Records
    """(r, s) the running ones, smallest (finish in virtual time, row) first."""
    batch_s: NDArray[np.float64]
    """(r, w) what batches of 1, 2, ... add to `fixed_s`, of tabled replicas, at their speed; w is 0
    where there are none."""
    queues: Records
    """(r, 2) the waiting ones by arrival, and those that are away by (ready_s, row)."""
    prefixes: Records
    """(p,)"""
    group_prefix: NDArray[np.int64]
    """(g,) first of the group's prompts on replicas."""


def empty_state() -> State:
    """No trajectory and no replica."""
    return State(
        np.zeros(0, TRAJECTORY),
        np.zeros(0, TURN),
        np.zeros(0, REPLICA),
        np.zeros(0),
        np.zeros((0, 1), FINISH),
        np.zeros((0, 0)),
        np.zeros((0, 2), QUEUE),
        np.zeros(0, PREFIX),
        np.zeros(0, np.int64),
    )


def grown(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """The array with room for at least `rows`; doubling keeps many small additions cheap."""
    if rows <= len(array):
        return array
    bigger = np.zeros((max(rows, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    bigger[: len(array)] = array
    return bigger


def widened(array: NDArray[Any], columns: int) -> NDArray[Any]:
    """The (r, w) array with room for at least `columns`."""
    if columns <= array.shape[1]:
        return array
    wider = np.zeros((len(array), columns), dtype=array.dtype)
    wider[:, : array.shape[1]] = array
    return wider


def trajectory_records(given: Trajectories, first_turn: int) -> Records:
    """(n,) records of trajectories that are not submitted."""
    rows = np.zeros(len(given), TRAJECTORY)
    ends = first_turn + np.cumsum(given.turns)
    rows["prompt_tokens"] = rows["given_tokens"] = given.prompt_tokens
    rows["encode_s"], rows["generated"] = given.encode_s, given.generated
    rows["turn"], rows["last_turn"] = ends - given.turns, ends - 1
    rows["goal"] = given.turn_tokens[rows["turn"] - first_turn]
    rows["ready_s"] = -np.inf
    rows["group"] = given.group
    for name in ("replica", "prefix", "kept_on", "next", "previous"):
        rows[name] = NONE
    return rows


def turn_records(given: Trajectories) -> Records:
    """(m,)"""
    rows = np.zeros(len(given.turn_tokens), TURN)
    rows["tokens"], rows["wait_s"] = given.turn_tokens, given.wait_s
    rows["extra"] = given.extra_tokens
    return rows


def replica_record(spec: ReplicaSpec, now_s: float) -> Records:
    """(1,) record of a replica that joins now."""
    row = np.zeros(1, REPLICA)
    seconds = ("fixed_s", "sequence_s", "token_s", "knee_token_s")
    for name in (*seconds, "prefill_token_s", "prefill_step_s", "request_s"):
        row[name] = getattr(spec, name) / spec.speed
    for name in ("speed", "knee_tokens", "tokens_per_iteration", "cost_factor", "max_num_seqs"):
        row[name] = getattr(spec, name)
    row["capacity"], row["admit_below"] = spec.kv_capacity_tokens, spec.admit_below_tokens
    row["prefix_cache"], row["keeps_kv"] = spec.prefix_cache_tokens, spec.keeps_kv_between_turns
    row["now_s"], row["forgotten"], row["alive"] = now_s, -1.0, 1
    row["tabled"] = len(spec.batch_s) > 0
    return row


def batch_record(spec: ReplicaSpec) -> NDArray[np.float64]:
    """(max_num_seqs,) the replica's part of `State.batch_s`; (0,) where it has no table."""
    return (np.array(spec.batch_s, dtype=np.float64) - spec.fixed_s) / spec.speed
