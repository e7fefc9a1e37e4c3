"""The simulated fleet of a replay: so many replicas of a hardware profile, or of several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Ints
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.mechanisms.simulated.spec import ReplicaSpec

HANDOVER_S = 0.02
"""Abort on one replica to arrival at another, as measured on a local Ray cluster (6-20 ms)."""
POOLS = ("bulk", "tail")


@dataclass(frozen=True)
class FleetPlan:
    """What the replay runs on."""

    profile: HardwareProfile
    """Of every replica, unless `profiles` says otherwise."""
    replicas: int
    """Those that join later included."""
    speeds: Sequence[float] = ()
    """Speed of each replica (1: as the profile says); empty: all 1."""
    handover_s: float = HANDOVER_S
    image_encode_s: float = 0.0
    """Seconds that encoding one image of a prompt takes, on a replica of speed 1."""
    profiles: Sequence[HardwareProfile] = ()
    """Of each replica: mixed hardware; empty: all are of `profile`."""
    pools: Sequence[str] = ()
    """Of each replica; empty: all in bulk."""
    absent: Sequence[int] = ()
    """Replicas that are not there at the beginning: an event lets them join."""
    prefix_cache_share: float | None = None
    """Of the KV cache: what prompts that nobody uses, and contexts that wait for a tool, may take
    before they are forgotten, so that a turn need not compute its whole context again; None:
    prompts are kept as long as there is room, contexts are not kept."""
    acceptance: tuple[float, ...] = ()
    """Probability that draft position i is accepted given that all before it were; empty: the
    engines cannot speculate."""
    draft_token_s: float = 0.0
    """Seconds that drafting one position takes, at speed 1; next to none for suffix or n-gram
    lookup."""
    verify_s: float = 0.0
    """Seconds that an iteration takes longer for any draft in it, at speed 1: the rejection sampler
    and the host's part of it."""
    draft_tokens: int = 0
    """Drafted at the beginning."""
    best_speeds: Sequence[float] = ()
    """Highest that each replica ever has, where events change them; empty: `speeds`."""
    best_acceptance: tuple[float, ...] = ()
    """Highest of each position, likewise; empty: `acceptance`."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise InvalidInputError(f"replicas is {self.replicas}; valid: 1 or more")
        for name in ("speeds", "profiles", "pools", "best_speeds"):
            given = getattr(self, name)
            if given and len(given) != self.replicas:
                raise InvalidInputError(
                    f"{len(given)} {name} for {self.replicas} replicas; valid: one for each"
                )
        for pool in self.pools:
            if pool not in POOLS:
                raise InvalidInputError(f"pool is {pool!r}; valid: {', '.join(POOLS)}")
        for chance in self.acceptance:
            if not 0 <= chance <= 1:
                raise InvalidInputError(f"acceptance is {chance}; valid: from 0 to 1")
        for name in ("draft_token_s", "verify_s"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf:
                raise InvalidInputError(f"{name} is {seconds}; valid: 0 or more")
        if not 0 <= self.draft_tokens <= len(self.acceptance):
            raise InvalidInputError(
                f"draft_tokens is {self.draft_tokens}; valid: 0 to {len(self.acceptance)}, the "
                "positions that acceptance tells of"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the replicas, in order."""
        return tuple(f"replica-{i}" for i in range(self.replicas))

    @property
    def each(self) -> Sequence[HardwareProfile]:
        """Profile of each replica."""
        return self.profiles or (self.profile,) * self.replicas

    @property
    def described(self) -> str:
        """For a person: "8 x NAME", or several of these."""
        names = [profile.name for profile in self.each]
        return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))

    @property
    def pool_of(self) -> tuple[str, ...]:
        """Pool of each replica."""
        return tuple(self.pools) or (POOLS[0],) * self.replicas

    @property
    def speed(self) -> Floats:
        """(r,)"""
        return np.array(self.speeds or (1.0,) * self.replicas, dtype=np.float64)

    @cached_property
    def slots(self) -> Ints:
        """(r,) sequences that each runs at once, at most."""
        return np.array([profile.max_num_seqs for profile in self.each])

    @cached_property
    def kv_capacity_tokens(self) -> Ints:
        """(r,) 0: unlimited."""
        return np.array([profile.kv_capacity_tokens for profile in self.each])

    def specs(self) -> list[ReplicaSpec]:
        """Of the replicas, in order."""
        pairs = zip(self.each, self.speed.tolist(), strict=True)
        specs = [replace(profile.replica_spec(), speed=speed) for profile, speed in pairs]
        share = self.prefix_cache_share
        if share is None:
            return specs
        return [
            replace(
                spec,
                keeps_kv_between_turns=True,
                prefix_cache_tokens=share * spec.kv_capacity_tokens,
            )
            for spec in specs
        ]
