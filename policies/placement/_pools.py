"""Pools of replicas: how long each would take for its share of the work, and how to fill them."""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.decision import Decision, place
from steersman.policies.placement._fewest import fewest_first


@dataclass(frozen=True)
class FleetSpeed:
    """The mean living replica, as the affine iteration model has it."""

    fixed_s: float
    """M"""
    sequence_s: float
    token_s: float
    slots: float
    """Sequences it runs at once."""

    @classmethod
    def of(cls, observation: Observation, forecast: Forecast) -> "FleetSpeed":
        """Call it only while a replica lives."""
        alive, t = observation.replicas.alive, forecast.throughput
        return cls(
            float(t.fixed_s[alive].mean()),
            float(t.sequence_s[alive].mean()),
            float(t.token_s[alive].mean()),
            float(np.maximum(observation.replicas.max_num_seqs[alive], 1).mean()),
        )

    def pool_s(self, longest: Floats, tokens: Floats, context: Floats, replicas: Floats) -> Floats:
        """Seconds of a pool of `replicas` (at least 1) that shares its work evenly.

        T = M * steps + c * sum(L) / replicas + k * sum(context) / replicas; steps are the longest
        trajectory's tokens, or more where the batch slots fill up and the rest waits.
        """
        steps = np.maximum(longest, tokens / (replicas * self.slots))
        work = self.sequence_s * tokens + self.token_s * context
        return np.asarray(self.fixed_s * steps + work / replicas)


def integer_split(
    speed: FleetSpeed, longest: Floats, tokens: Floats, context: Floats, replicas: int
) -> Ints:
    """(p,) replicas for each of p <= `replicas` pools, so that the last to end ends soonest.

    A pool's time falls with its replicas, so giving one after another to the pool that would end
    last is optimal.
    """
    count = np.ones(len(longest), dtype=np.int64)
    for _ in range(replicas - len(longest)):
        end_s = speed.pool_s(longest, tokens, context, count.astype(np.float64))
        count[np.argmax(end_s)] += 1
    return count


def by_name(observation: Observation) -> Ints:
    """Rows of the living replicas in the order of their names."""
    names = observation.replicas.names
    living = np.flatnonzero(observation.replicas.alive).tolist()
    return np.array(sorted(living, key=lambda row: names[row]), dtype=np.int64)


def fill(
    observation: Observation, rows: Ints, pool: Ints, policy: str, reason: str
) -> list[Decision]:
    """Place `rows`, in this order, each where the fewest are in flight among the `pool`'s replicas;
    ties go to the first of them."""
    rank = {row: number for number, row in enumerate(pool.tolist())}
    targets = fewest_first(observation.inflight(), pool, len(rows), lambda row, _: rank[row])
    return [
        place(observation, row, target, policy, reason)
        for row, target in zip(rows.tolist(), targets, strict=True)
    ]
