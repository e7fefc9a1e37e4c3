"""The board: where everything stands, as columns that can be copied into an observation.

The ledger writes single rows as things happen; a snapshot is a handful of array copies, whatever
the number of trajectories.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.controller.columns import Columns
from steersman.controller.groups import GroupState
from steersman.controller.results import Prompt
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    AS_REPLICA,
    NO_ROW,
    NO_VERSION,
    EndedTable,
    Floats,
    GroupTable,
    Ints,
    ReplicaTable,
    RewardTable,
    TrajectoryTable,
)
from steersman.mechanisms.execution import Execution, ToReplica
from steersman.mechanisms.fleet import Fleet

TRAJECTORY_COLUMNS = tuple(
    name for name in TrajectoryTable.__dataclass_fields__ if name != "group_row"
)
GROUP_COLUMNS = tuple(name for name in GroupTable.__dataclass_fields__ if name != "features")
STREAMED = ("regret", "repeated_share")
"""Nobody streams log-probabilities or looks at tokens here yet: always NaN."""
FLOATS = ("queued_s", "placed_s", "moved_s", *STREAMED)
REWARDS = ("reward_sum", "reward_low", "reward_high")
EndedRow = tuple[int, int, int, int, int, bool, int, int]
"""One row of `EndedTable`."""
RewardRow = tuple[int, int, int, int, float, int]
"""One row of `RewardTable`."""


class Board:
    """Rows of the trajectories and groups that are not delivered."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._replica_rows: dict[str, int] = {}
        whole = [n for n in TRAJECTORY_COLUMNS if n not in (*FLOATS, "trajectory_id")]
        self._trajectories = Columns("trajectory_id", floats=FLOATS, ints=("group", *whole))
        self._groups = Columns(
            "group_id",
            floats=REWARDS,
            ints=tuple(n for n in GROUP_COLUMNS if n not in (*REWARDS, "group_id")),
        )
        self._features: dict[int, tuple[float, ...]] = {}
        """By group row."""

    def add_group(self, group_id: int, prompt: Prompt, size: int, step: int) -> int:
        """A new group's row."""
        row = self._groups.take(
            group_id=group_id,
            prompt_key=prompt.key,
            size=size,
            ended=0,
            step=step,
            rewarded=0,
            reward_sum=0.0,
            reward_low=np.inf,
            reward_high=-np.inf,
        )
        self._features[row] = prompt.features
        return row

    def add_trajectory(
        self,
        trajectory_id: int,
        group_id: int,
        prompt_tokens: int,
        max_new_tokens: int,
        restarts: int,
        now_s: float,
    ) -> int:
        """The row of a trajectory that begins to wait."""
        return self._trajectories.take(
            trajectory_id=trajectory_id,
            group=group_id,
            phase=Phase.QUEUED,
            replica_row=NO_ROW,
            target_row=NO_ROW,
            prompt_tokens=prompt_tokens,
            generated_tokens=0,
            max_new_tokens=max_new_tokens,
            queued_s=now_s,
            placed_s=np.nan,
            moved_s=-np.inf,
            moves=0,
            deferred=0,
            restarts=restarts,
            turns=0,
            oldest_weight_version=NO_VERSION,
            draft_tokens=AS_REPLICA,
            **dict.fromkeys(STREAMED, np.nan),
        )

    def drop_trajectory(self, row: int) -> None:
        """It is not needed any more."""
        self._trajectories.give_back(row)

    def drop_group(self, row: int) -> None:
        """It is not needed any more."""
        self._groups.give_back(row)
        del self._features[row]

    def grow_group(self, row: int, size: int) -> None:
        """It has so many samples now."""
        self._groups["size"][row] = size

    def count_answer(self, group_row: int) -> None:
        """One more of the group has its answer."""
        self._groups["ended"][group_row] += 1

    def count_reward(self, group_row: int, reward: float) -> None:
        """The reward of one more of the group is known."""
        g = self._groups
        g["rewarded"][group_row] += 1
        g["reward_sum"][group_row] += reward
        g["reward_low"][group_row] = min(g["reward_low"][group_row], reward)
        g["reward_high"][group_row] = max(g["reward_high"][group_row], reward)

    def restarts(self, row: int) -> int:
        """Trajectories that had this one's slot before it."""
        return int(self._trajectories["restarts"][row])

    def update(self, row: int, execution: Execution, now_s: float) -> tuple[int, int]:
        """Take over a change of phase; returns the new moves and deferrals that came with it."""
        columns = self._trajectories
        # `item`: a numpy scalar beside an enum costs 3 us to compare
        was_leaving = columns["phase"].item(row) == Phase.LEAVING
        columns["phase"][row] = execution.phase
        columns["replica_row"][row] = self._replica_row(execution.replica)
        intent = execution.intent
        target = intent.replica if isinstance(intent, ToReplica) else None
        columns["target_row"][row] = self._replica_row(target)
        columns["generated_tokens"][row] = execution.generated_tokens
        columns["oldest_weight_version"][row] = oldest_version(execution)
        moves = execution.moves - columns["moves"].item(row)
        deferrals = execution.deferrals - columns["deferred"].item(row)
        if moves or deferrals:
            columns["moves"][row], columns["deferred"][row] = execution.moves, execution.deferrals
        if execution.phase is Phase.LEAVING or (deferrals and not was_leaving):
            columns["moved_s"][row] = now_s
        if execution.phase is Phase.RUNNING:
            columns["placed_s"][row] = now_s
        elif execution.phase is not Phase.LEAVING:
            columns["placed_s"][row] = np.nan
        if execution.phase is Phase.QUEUED:
            columns["queued_s"][row] = now_s
        payload = execution.spec.payload
        if payload is not None and payload.bound:
            columns["moved_s"][row] = np.inf
        return moves, deferrals

    def tables(
        self, running: Iterable[tuple[int, Execution]]
    ) -> tuple[TrajectoryTable, GroupTable]:
        """Copies for an observation; `running` are the rows whose figures may have changed.

        Groups that are complete but not delivered yet are left out: nothing can be decided there.
        """
        groups, order = self._groups, self._groups.order()
        order = order[groups["ended"][order] < groups["size"][order]]
        group_table = GroupTable(
            **{name: groups[name][order] for name in GROUP_COLUMNS},
            features=_matrix([self._features[row] for row in order.tolist()], np.float64),
        )
        columns = self._trajectories
        generated, drafted = columns["generated_tokens"], columns["draft_tokens"]
        for row, execution in running:
            generated[row] = execution.generated_tokens
            drafted[row] = execution.draft_tokens
        order = columns.order()
        group_row = np.searchsorted(group_table.group_id, columns["group"][order])
        known = group_row < len(group_table)
        known[known] = group_table.group_id[group_row[known]] == columns["group"][order[known]]
        order, group_row = order[known], group_row[known]
        pick = {name: columns[name][order] for name in TRAJECTORY_COLUMNS}
        return TrajectoryTable(group_row=group_row, **pick), group_table

    def _replica_row(self, name: str | None) -> int:
        if name is None:
            return NO_ROW
        if name not in self._replica_rows:  # a fleet only ever appends replicas
            self._replica_rows = {info.name: i for i, info in enumerate(self._fleet.replicas)}
        return self._replica_rows[name]


def oldest_version(execution: Execution) -> int:
    """As observations have it: `NO_VERSION` where no token has been written."""
    oldest = execution.oldest_weight_version
    return NO_VERSION if oldest is None else oldest


def ended_row(execution: Execution, group: GroupState, censored: bool) -> EndedRow:
    """What an estimator learns of a trajectory that has ended."""
    return (
        execution.spec.trajectory_id,
        group.group_id,
        group.prompt.key,
        len(execution.spec.prompt_token_ids),
        len(execution.tokens),
        censored,
        int(not censored),
        oldest_version(execution),
    )


def ended_table(rows: list[EndedRow]) -> EndedTable:
    """The rows as arrays."""
    if not rows:
        return EndedTable.empty()
    table = np.array(rows, dtype=np.int64)
    ids, groups, keys, prompts, generated, censored, turns, versions = table.T
    return EndedTable(
        ids, groups, keys, prompts, generated, censored.astype(np.bool_), turns, versions
    )


def reward_table(rows: list[RewardRow]) -> RewardTable:
    """The rows as arrays."""
    if not rows:
        return RewardTable.empty()
    ids, groups, keys, sizes, rewards, versions = zip(*rows, strict=True)
    return RewardTable(
        np.array(ids),
        np.array(groups),
        np.array(keys),
        np.array(sizes),
        np.array(rewards, dtype=np.float64),
        np.array(versions),
    )


def replica_table(fleet: Fleet, now_s: float) -> ReplicaTable:
    """The fleet's replicas as arrays; `now_s` is on the clock of `ReplicaStats.reported_s`."""
    infos = fleet.replicas
    stats = [fleet.stats(info.name) for info in infos]

    def ints(values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    def floats(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    return ReplicaTable(
        names=tuple(info.name for info in infos),
        pools=tuple(info.pool for info in infos),
        alive=np.array([fleet.is_alive(info.name) for info in infos], dtype=np.bool_),
        running=ints([s.running for s in stats]),
        waiting=ints([s.waiting for s in stats]),
        kv_cache_usage=floats([s.kv_cache_usage for s in stats]),
        kv_capacity_tokens=ints([info.kv_capacity_tokens for info in infos]),
        max_num_seqs=ints([info.max_num_seqs for info in infos]),
        preemptions=ints([s.preemptions for s in stats]),
        prefix_hit_share=floats([s.prefix_hits / max(s.prefix_queries, 1) for s in stats]),
        prefill_tokens=ints([s.prefill_tokens for s in stats]),
        asked_at=_matrix([s.asked_at for s in stats], np.int64),
        drafted_at=_matrix([s.drafted_at for s in stats], np.int64),
        accepted_at=_matrix([s.accepted_at for s in stats], np.int64),
        draft_tokens=ints([s.draft_tokens for s in stats]),
        max_draft_tokens=ints([info.max_draft_tokens for info in infos]),
        weight_version=ints([s.weight_version for s in stats]),
        iterations=ints([s.iterations for s in stats]),
        busy_s=floats([s.busy_s for s in stats]),
        sequences_run=floats([s.sequences_run for s in stats]),
        metrics_age_s=floats([now_s - s.reported_s for s in stats]),
    )


def _matrix(rows: Sequence[Sequence[float]], dtype: type) -> NDArray[Any]:
    """Rows side by side, short ones filled up with zeros."""
    width = max(map(len, rows), default=0)
    if not width:
        return np.zeros((len(rows), 0), dtype=dtype)
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)
