"""Free slots and KV room of the replicas, counted down while placements are made."""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.observation import Bools, Floats, Ints, Observation


@dataclass
class Wishes:
    """What n trajectories in turn need, and which replicas they prefer."""

    tokens: Ints
    """To set aside for each."""
    group: Ints
    """Row in `preferred`."""
    home: Ints
    """The one replica that each prefers, or -1: those of its group."""
    preferred: Bools
    """(g, r); is changed."""
    marks: Bools
    """What where it goes becomes for its group: preferred or not."""


@dataclass
class Slots:
    """What r replicas can take; arrays are its own."""

    alive: Bools
    rank: Ints
    """Order of the replicas' names: ties do not depend on their rows."""
    count: Ints
    """In flight, those on their way included."""
    limit: Ints
    """Most in flight."""
    reserved: Floats
    """Tokens set aside for what is in flight."""
    capacity: Floats
    """KV capacity in tokens; inf where it is not known."""

    @classmethod
    def of(cls, observation: Observation, tokens: Ints, backlog: int = 0) -> "Slots":
        """With `tokens` (n,) set aside for each trajectory that is on a replica."""
        replicas, rows = observation.replicas, observation.destination_row
        here = rows >= 0
        capacity = replicas.kv_capacity_tokens.astype(np.float64)
        return cls(
            alive=replicas.alive.copy(),
            rank=replicas.name_rank,
            count=observation.inflight(),
            limit=np.maximum(replicas.max_num_seqs, 1) + backlog,
            reserved=np.bincount(rows[here], weights=tokens[here], minlength=len(replicas)).astype(
                np.float64
            ),
            capacity=np.where(capacity > 0, capacity, np.inf),
        )

    @property
    def free(self) -> int:
        """Slots of the living replicas that nobody has."""
        return int(np.maximum(self.limit - self.count, 0)[self.alive].sum())

    @property
    def spread(self) -> int:
        """Most minus fewest in flight, of the living."""
        count = self.count[self.alive]
        return int(count.max() - count.min()) if len(count) else 0

    def fill(self, wishes: Wishes, spread: int) -> Ints:
        """Each in turn to where `best` says, -1 from the first that fits nowhere.

        While the spread is at most `spread`: to a replica that it prefers, if one has room.
        """
        from steersman.policies.placement._waterfall import by_fewest  # numba loads slowly

        return np.asarray(
            by_fewest(
                wishes.tokens, wishes.group, wishes.home, wishes.marks, spread, wishes.preferred,
                self.alive, self.rank, self.limit, self.capacity, self.count, self.reserved,
            )
        )  # fmt: skip

    def best(self, tokens: int) -> int:
        """Replica with a slot and KV room that has the fewest in flight, or -1.

        An empty replica has room for anything.
        """
        fits = (self.reserved + tokens <= self.capacity) | (self.count == 0)
        takes = self.alive & (self.count < self.limit) & fits
        if not takes.any():
            return -1
        load = self.count * len(self.count) + self.rank
        return int(np.argmin(np.where(takes, load, np.iinfo(np.int64).max)))

    def take(self, replica: int, tokens: int, trajectories: int = 1) -> None:
        """Something goes there; negative: away."""
        self.count[replica] += trajectories
        self.reserved[replica] += tokens
