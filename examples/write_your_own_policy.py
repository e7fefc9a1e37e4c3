"""A placement policy of your own, in one file: the replica that holds the fewest tokens is next.

Copy it, change `decide`, and name it by its dotted path:
`steersman demo --policy steersman.examples.write_your_own_policy`.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from steersman.controller.plugins import build
from steersman.estimators import observation as seen
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.policies.contract import PlacementPolicy, Stateless
from steersman.policies.decision import Decision, place


@dataclass
class FewestTokens(Stateless):
    """Its fields are its options; their defaults are what you tested."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT  # it changes no sample

    share: float = 1.0
    """Part of each replica's batch that may be filled, in (0, 1]."""

    def decide(
        self, observation: seen.Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Values in, values out: no clock, no I/O, randomness only from `rng`."""
        replicas, decisions = observation.replicas, []
        tokens, inflight = observation.resident_tokens(), observation.inflight()
        for row in observation.queued.tolist():
            free = replicas.alive & (inflight < self.share * replicas.max_num_seqs)
            if not free.any():
                break
            best = int(np.where(free, tokens, tokens.max() + 1).argmin())
            tokens[best] += observation.trajectories.prompt_tokens[row]
            inflight[best] += 1
            decisions.append(place(observation, row, best, "fewest_tokens", "fewest tokens there"))
        return decisions


PLUGIN: type[PlacementPolicy] = FewestTokens  # makes the file a part; mypy proves the contract here


def table(kind: Any, rows: int, **columns: Any) -> Any:
    """A table of an observation; columns that are not given are zero (phase 0 is QUEUED)."""
    zeros = {f.name: np.zeros(rows, dtype=np.int64) for f in fields(kind)}
    return kind(**{**zeros, **columns})


if __name__ == "__main__":
    names, batch = ("big", "small"), np.array([8, 2])
    prompts = table(seen.TrajectoryTable, 4, trajectory_id=np.arange(4), replica_row=np.full(4, -1))
    prompts.prompt_tokens[:] = [100, 80, 30, 10]
    fleet = table(seen.ReplicaTable, 2, names=names, alive=batch > 0, max_num_seqs=batch)
    group = table(seen.GroupTable, 1)
    snapshot = seen.Observation(0.0, 1, seen.TrainerSignal(), prompts, group, fleet)
    policy = build("policies.placement", "steersman.examples.write_your_own_policy", {"share": 0.9})
    for d in policy.decide(snapshot, Forecast.unknown(snapshot), np.random.default_rng(0)):
        print(f"{d.trajectory_id} -> {d.replica}: {d.reason}")
