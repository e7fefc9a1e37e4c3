"""The observation: one immutable snapshot of everything a decision may depend on, as arrays.

Five tables (structures of arrays) and one trainer signal.  Rows are ordered by id, so that the
order is part of the value; `group_row` and `replica_row` point into the other tables.  Trajectories
that have ended stay in the table until their whole group has ended, because siblings tell an
estimator what to expect.  Commands already sent are in the snapshot (phase LEAVING, `target_row`),
so that the next decision counts their effect before the replicas' own metrics show it.

Times are seconds on one monotonic clock chosen by whoever builds the snapshot; deciding never reads
a clock.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.lifecycle import Phase

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NO_ROW = -1
"""In `*_row` columns: not on any replica, or no target."""
AS_REPLICA = -1
"""In `draft_tokens` of a trajectory: what its replica drafts."""
ONLY_AS_REPLICA = -2
"""The same where single trajectories cannot be told anything else, as in replays."""
NO_VERSION = -1
"""In `oldest_weight_version`: no token has been written yet."""


class Objective(StrEnum):
    """What the trainer waits for; the two want opposite orders, so it is never assumed."""

    BARRIER = "barrier"
    """Every group of the step: the last trajectory counts (longest first)."""
    STREAM = "stream"
    """The next complete groups, whichever they are (shortest remaining first)."""


class Normaliser(StrEnum):
    """What the trainer divides advantages by; it decides what an outcome is worth."""

    STD = "std"
    """The group's standard deviation: a group counts whenever its rewards are not all equal."""
    NONE = "none"
    """Nothing: a group counts by the variance of its rewards."""


@dataclass(frozen=True, slots=True)
class TrainerSignal:
    """What the trainer tells: where it stands and what it can tolerate."""

    step: int = 0
    weight_version: int = 0
    max_lag: int = 1
    """Largest allowed difference between the trainer's version and a trajectory's oldest one."""
    objective: Objective = Objective.BARRIER
    groups_wanted: int = 0
    """Complete groups the trainer needs for its batch; 0: all of them."""
    step_started_s: float = 0.0
    """When the step began, on the observation's clock."""
    normaliser: Normaliser = Normaliser.STD
    policy_kl: float | None = None
    """KL divergence between the newest weights and the version before, if the trainer told it."""
    groups_filtered: int | None = None
    """Complete groups so far that never make up a batch; None: the trainer may filter, but does
    not tell."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a look ahead in a simulator, begun some ticks ago, says of p plans for what waits."""

    step: int
    """Trainer step that it is about."""
    asked_s: float
    """Time of the observation that it rests on."""
    plans: tuple[str, ...]
    """Names of the plans compared; the first is what the others are compared to."""
    mean_s: Floats
    """(p,) expected seconds from `asked_s` to the end of the step under each plan."""
    error_s: Floats
    """(p,) standard error of the mean difference to the first plan."""


@dataclass(frozen=True)
class TrajectoryTable:
    """n trajectories: all unfinished ones, and the finished ones of unfinished groups."""

    trajectory_id: Ints
    group_row: Ints
    """Row in the group table."""
    phase: Ints
    """Values of `Phase`."""
    replica_row: Ints
    """Row of the replica it runs on (RUNNING, LEAVING), else `NO_ROW`."""
    target_row: Ints
    """Row of the replica it is on its way to (LEAVING), else `NO_ROW`."""
    prompt_tokens: Ints
    generated_tokens: Ints
    """Tokens so far, over all attempts."""
    max_new_tokens: Ints
    """Token cap of the whole trajectory, generated ones included."""
    queued_s: Floats
    """When it last began to wait for a placement."""
    placed_s: Floats
    """When its present attempt began; NaN where there is none."""
    moved_s: Floats
    """When it last left a replica by a decision; -inf if never, inf if it must not."""
    moves: Ints
    """Times it left a replica by a decision."""
    deferred: Ints
    """Times it was parked."""
    restarts: Ints
    """Trajectories that had its slot before it."""
    turns: Ints
    """Turns it has finished; 0 while a trajectory of one turn is being written."""
    oldest_weight_version: Ints
    """Version that wrote its first token, or `NO_VERSION`."""
    regret: Floats
    """Mean of (log-probability of the likeliest token - of the one drawn) over the tokens written
    since the last observation; NaN where none was, or log-probabilities are not streamed."""
    repeated_share: Floats
    """Share of its last tokens that repeat what it wrote before, 0..1; NaN where nobody looks."""
    draft_tokens: Ints
    """Tokens drafted for it per iteration, `AS_REPLICA`, or `ONLY_AS_REPLICA`."""

    def __len__(self) -> int:
        return len(self.trajectory_id)


@dataclass(frozen=True)
class GroupTable:
    """g groups with at least one unfinished trajectory."""

    group_id: Ints
    prompt_key: Ints
    """Stable 63-bit hash of the prompt's name: the same prompt in another step has the same key."""
    size: Ints
    ended: Ints
    """Trajectories of the group that are answered."""
    step: Ints
    """Trainer step that admitted it."""
    rewarded: Ints
    """Trajectories of the group whose reward is known."""
    reward_sum: Floats
    """Of the known rewards; so are the next two."""
    reward_low: Floats
    """Smallest; inf while none is known."""
    reward_high: Floats
    """Largest; -inf while none is known.  Above `reward_low`: the group is informative."""
    features: Floats
    """(g, f) what is known of the prompt beforehand, as numbers; f may be 0."""

    def __len__(self) -> int:
        return len(self.group_id)


@dataclass(frozen=True)
class ReplicaTable:
    """r replicas, dead ones included, so that rows stay the same while a fleet lives."""

    names: tuple[str, ...]
    pools: tuple[str, ...]
    """Pool of each replica: "bulk" or "tail"."""
    alive: Bools
    """Reachable, and not leaving the fleet."""
    running: Ints
    """Requests in the engine's running batch, as last reported."""
    waiting: Ints
    """Requests in the engine's own queue, as last reported."""
    kv_cache_usage: Floats
    """Share of the KV cache in use, 0..1."""
    kv_capacity_tokens: Ints
    max_num_seqs: Ints
    """Largest running batch."""
    preemptions: Ints
    """Preempted requests since the engine started."""
    prefix_hit_share: Floats
    """Share of the prompt tokens that came from the prefix cache since the engine started."""
    prefill_tokens: Ints
    """Prompt tokens computed (not found in the prefix cache) in those of `iterations`."""
    asked_at: Ints
    """(r, k) times the drafter was asked for a token at that position of a sequence's draft since
    the engine started, found or not; k may be 0: not told."""
    drafted_at: Ints
    """(r, k) speculative tokens proposed at each draft position since the engine started; k may
    be 0."""
    accepted_at: Ints
    """(r, k) those of them that the model accepted."""
    draft_tokens: Ints
    """Tokens drafted per sequence and iteration at present; 0: no speculation."""
    max_draft_tokens: Ints
    """Most that the engine can be told to draft; 0: it cannot speculate."""
    weight_version: Ints
    iterations: Ints
    """Engine iterations since the engine started."""
    busy_s: Floats
    """Seconds the engine has spent in iterations since it started."""
    sequences_run: Floats
    """Sum over those iterations of the running batch's size."""
    metrics_age_s: Floats
    """Age of these figures; a policy must not trust old ones."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def name_rank(self) -> Ints:
        """(r,) place of each in the order of the names: ties by it do not depend on rows."""
        return np.argsort(np.argsort(np.array(self.names)))

    @classmethod
    def empty(cls) -> Self:
        """No replica."""
        none, shares = np.zeros(0, dtype=np.int64), np.zeros(0)
        return cls(
            names=(),
            pools=(),
            alive=none.astype(np.bool_),
            running=none,
            waiting=none,
            kv_cache_usage=shares,
            kv_capacity_tokens=none,
            max_num_seqs=none,
            preemptions=none,
            prefix_hit_share=shares,
            prefill_tokens=none,
            asked_at=none.reshape(0, 0),
            drafted_at=none.reshape(0, 0),
            accepted_at=none.reshape(0, 0),
            draft_tokens=none,
            max_draft_tokens=none,
            weight_version=none,
            iterations=none,
            busy_s=shares,
            sequences_run=shares,
            metrics_age_s=shares,
        )


@dataclass(frozen=True)
class EndedTable:
    """m trajectories that ended, or were cut off, since the last observation."""

    trajectory_id: Ints
    group_id: Ints
    prompt_key: Ints
    prompt_tokens: Ints
    generated_tokens: Ints
    censored: Bools
    """True where the length is only a lower bound: truncated, stopped, restarted or abandoned."""
    turns: Ints
    """Turns finished, the last one included unless it was cut off."""
    weight_version: Ints

    def __len__(self) -> int:
        return len(self.trajectory_id)

    @classmethod
    def empty(cls) -> Self:
        """No trajectory."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, none, none, none.astype(np.bool_), none, none)


@dataclass(frozen=True)
class RewardTable:
    """m rewards that became known since the last observation."""

    trajectory_id: Ints
    group_id: Ints
    prompt_key: Ints
    group_size: Ints
    reward: Floats
    weight_version: Ints
    """Version that wrote the trajectory's first token, or `NO_VERSION`."""

    def __len__(self) -> int:
        return len(self.trajectory_id)

    @classmethod
    def empty(cls) -> Self:
        """No reward."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, none, none.astype(np.float64), none)


@dataclass(frozen=True)
class Observation:
    """Everything a decision may depend on.  Same observation and state, same decisions."""

    now_s: float
    tick: int
    """Number of this snapshot; with the seed it determines every random draw of the decision."""
    trainer: TrainerSignal
    trajectories: TrajectoryTable
    groups: GroupTable
    replicas: ReplicaTable
    ended: EndedTable = field(default_factory=EndedTable.empty)
    rewarded: RewardTable = field(default_factory=RewardTable.empty)
    advice: Advice | None = None
    """The answer of a look ahead that is due now; each is seen once."""

    @cached_property
    def drafted(self) -> Ints:
        """(n,) tokens drafted per iteration for each that is on a replica; 0 elsewhere."""
        t, at = self.trajectories, self.destination_row
        default = np.concatenate((self.replicas.draft_tokens, [0]))  # the last: nowhere
        return np.where(at < 0, 0, np.where(t.draft_tokens >= 0, t.draft_tokens, default[at]))

    @cached_property
    def destination_row(self) -> Ints:
        """(n,) replica each trajectory is on or on its way to, `NO_ROW` where there is none."""
        t = self.trajectories
        return np.where(t.phase == Phase.LEAVING, t.target_row, t.replica_row)

    @cached_property
    def queued(self) -> Ints:
        """Rows that wait for a placement."""
        return np.flatnonzero(self.trajectories.phase == Phase.QUEUED)

    @cached_property
    def running(self) -> Ints:
        """Rows that run on a replica and are not on their way anywhere."""
        return np.flatnonzero(self.trajectories.phase == Phase.RUNNING)

    def inflight(self) -> Ints:
        """(r,) trajectories on each replica, with those on their way to it.  A fresh array."""
        rows = self.destination_row[self.destination_row >= 0]
        return np.bincount(rows, minlength=len(self.replicas)).astype(np.int64)

    def resident_tokens(self) -> Ints:
        """(r,) prompt and generated tokens of the trajectories on each replica.  A fresh array."""
        t, rows = self.trajectories, self.destination_row
        here = rows >= 0
        tokens = (t.prompt_tokens + t.generated_tokens)[here]
        total = np.bincount(rows[here], weights=tokens, minlength=len(self.replicas))
        return total.astype(np.int64)
