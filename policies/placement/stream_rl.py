"""StreamRL's dispatch (arXiv 2504.15930): the samples predicted longest run in small batches.

At the beginning of a step the trajectories are ranked by predicted length.  The longest `share` of
them goes to a pool of its own, the others to the rest of the fleet.  The pool's size makes the
later of the two pools end soonest, in the affine model T = M * Lmax + c * sum(L) / replicas (the
paper enumerates the same with a profiled table): the long pool gets more replicas per trajectory,
so its batches are small and its iterations short.  In a pool the longest are placed first (LPT:
Graham 1969), each where the fewest are in flight.  Nothing is ever moved; the split holds for a
step, by name.

The paper trains a small language model to rank prompts; here the rank is that of `forecast.length`,
which knows a prompt from its earlier visits and its siblings.  Where it cannot tell the longest
`share` from the median, as before anything has finished, the fleet is not split: the fewest in
flight over all.

The split is as good as its idea of the longest sample of each pool, which is the largest upper
quantile.  With a strong tail the rest of the fleet, given few replicas, gets a sample beyond that
and ends the step: in simulation the rule then takes 1.1 times the default's time until prompts have
come again often.

Not here: streaming complete samples into the trainer (the trainer's own doing), and the size of the
trainer against that of the fleet.  The model knows batch slots but not KV memory: where memory, not
iteration time, bounds the fleet, fewer replicas for the many make them preempt, and the rule can
lose (arXiv 2511.14617 reports that it does).  Correctness class: exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Bools, Floats, Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Decision
from steersman.policies.placement._pools import FleetSpeed, by_name, fill, integer_split

NAME = "stream_rl"


@dataclass
class StreamRL:
    """The default is the paper's."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    share: float = 0.2
    """Share of the trajectories that counts as long."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {"share": Range(0.02, 0.5)}

    _step: int = field(default=-1, init=False)
    _long: tuple[str, ...] = field(default=(), init=False)
    """Replicas of the long pool in this step; empty: not split."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits."""
        replicas, queued = by_name(observation), observation.queued
        if not len(queued) or not len(replicas):
            return []
        t = observation.trajectories
        total = t.generated_tokens + forecast.length.mean_remaining_tokens
        queued = queued[np.lexsort((queued, -total[queued]))]
        is_long = self._longest(observation, total)
        if observation.trainer.step != self._step:
            self._step = observation.trainer.step
            self._long = self._pool(observation, forecast, is_long, replicas)
        names = observation.replicas.names
        in_long = np.array([names[row] in self._long for row in replicas])
        if in_long.all() or not in_long.any() or not is_long.any():
            return fill(observation, queued, replicas, NAME, "not split; fewest in flight")
        long, rest = queued[is_long[queued]], queued[~is_long[queued]]
        first = fill(observation, long, replicas[in_long], NAME, "among the longest; small batches")
        return first + fill(observation, rest, replicas[~in_long], NAME, "not among the longest")

    def _longest(self, observation: Observation, total: Floats) -> Bools:
        """(n,) the longest of the open trajectories; none where they cannot be told apart."""
        is_long = np.zeros(len(total), dtype=np.bool_)
        rows = np.flatnonzero(observation.trajectories.phase != Phase.ENDED)
        count = round(self.share * len(rows))
        order = rows[np.lexsort((rows, -total[rows]))]
        if 0 < count < len(rows) and total[order[count - 1]] > np.median(total[rows]):
            is_long[order[:count]] = True
        return is_long

    def _pool(
        self, observation: Observation, forecast: Forecast, is_long: Bools, replicas: Ints
    ) -> tuple[str, ...]:
        """Names of the long pool; empty where there is nothing to split."""
        t, length = observation.trajectories, forecast.length
        if not is_long.any() or len(replicas) < 2:
            return ()
        rest = (t.phase != Phase.ENDED) & ~is_long
        mean = length.mean_remaining_tokens
        context = mean * (t.prompt_tokens + t.generated_tokens + mean / 2)
        count = integer_split(
            FleetSpeed.of(observation, forecast),
            np.array([length.upper[rows].max() for rows in (is_long, rest)]),
            np.array([mean[rows].sum() for rows in (is_long, rest)]),
            np.array([context[rows].sum() for rows in (is_long, rest)]),
            len(replicas),
        )
        return tuple(observation.replicas.names[row] for row in replicas[: count[0]])

    def state_dict(self) -> dict[str, Any]:
        """The split of the present step."""
        return {"step": self._step, "long": list(self._long)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the split."""
        self._step, self._long = int(state["step"]), tuple(state["long"])


PLUGIN: type[PlacementPolicy] = StreamRL
