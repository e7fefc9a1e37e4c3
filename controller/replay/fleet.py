"""The simulated fleet of a replay: so many replicas of a hardware profile."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Ints, ReplicaTable
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.mechanisms.simulated.spec import ReplicaSpec

HANDOVER_S = 0.02
"""Abort on one replica to arrival at another, as measured on a local Ray cluster (6-20 ms)."""


@dataclass(frozen=True)
class FleetPlan:
    """What the replay runs on."""

    profile: HardwareProfile
    replicas: int
    speeds: Sequence[float] = ()
    """Speed of each replica (1: as the profile says); empty: all 1."""
    handover_s: float = HANDOVER_S
    image_encode_s: float = 0.0
    """Seconds that encoding one image of a prompt takes, on a replica of speed 1."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise InvalidInputError(f"replicas is {self.replicas}; valid: 1 or more")
        if self.speeds and len(self.speeds) != self.replicas:
            raise InvalidInputError(
                f"{len(self.speeds)} speeds for {self.replicas} replicas; valid: one for each"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the replicas, in order."""
        return tuple(f"replica-{i}" for i in range(self.replicas))

    def specs(self) -> list[ReplicaSpec]:
        """Of the replicas, in order."""
        speeds = self.speeds or (1.0,) * self.replicas
        return [replace(self.profile.replica_spec(), speed=speed) for speed in speeds]


def replica_table(
    core: SimulatedCore, plan: FleetPlan, weight_version: int, forgiven: Ints
) -> ReplicaTable:
    """The simulated engines' figures, as live ones report them, never late."""
    s, r = core.state(), plan.replicas
    capacity = plan.profile.kv_capacity_tokens
    return ReplicaTable(
        names=plan.names,
        pools=("bulk",) * r,
        alive=s.alive.astype(np.bool_),
        running=s.running.astype(np.int64),
        waiting=s.waiting.astype(np.int64),
        kv_cache_usage=s.kv_tokens / capacity if capacity else np.zeros(r),
        kv_capacity_tokens=np.full(r, capacity),
        max_num_seqs=np.full(r, plan.profile.max_num_seqs),
        preemptions=s.preemptions.astype(np.int64) - forgiven,
        prefix_hit_share=np.zeros(r),
        prefill_tokens=s.prefill_tokens.astype(np.int64),
        drafted_at=np.zeros((r, 0), dtype=np.int64),
        accepted_at=np.zeros((r, 0), dtype=np.int64),
        weight_version=np.full(r, weight_version),
        iterations=s.iterations.astype(np.int64),
        busy_s=s.busy_s,
        sequences_run=s.sequences_run,
        metrics_age_s=np.zeros(r),
    )
