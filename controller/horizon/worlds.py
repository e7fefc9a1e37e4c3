"""Many copies of the present fleet, side by side in one simulated core.

A world is one plan in one scenario.  Replicas do not touch each other, so that w worlds of r
replicas are one fleet of w * r, and time passes in all of them in one compiled call.

What runs already is in its replica's memory: it joins the batch without a prefill, the one that
began first at the head, as far as slots and memory go; the rest waits in the engine's queue and
pays like anybody.  What a replica drafts is drafted for everybody there, and verified at the
forecast cost.  Tool waits, images and what tools added to a context are not modelled: they are the
same under every plan.
"""

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.estimators.speculation import expected_tokens
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import EventKind, ReplicaSpec, Trajectories

LEAST_FIXED_S = 1e-6
"""An iteration takes time, whatever an estimator says that has seen little."""


class Worlds:
    """See the module.  Replicas are the observation's living ones, counted from 0."""

    def __init__(
        self, observation: Observation, forecast: Forecast, rows: Ints, remaining: Floats
    ) -> None:
        """`rows` (n,) of the observation take part, and write `remaining` (w, n) tokens more."""
        worlds, n = remaining.shape
        self._core = _Core()
        self._n, self.living = n, np.flatnonzero(observation.replicas.alive)
        for _ in range(worlds):
            for spec in _specs(observation, forecast, self.living):
                self._core.add_replica(spec)
        t, groups = observation.trajectories, len(observation.groups)
        written = t.generated_tokens[rows].astype(np.float64)
        group = t.group_row[rows] + groups * np.arange(worlds)[:, None]
        self._core.add(
            Trajectories.of_one_turn(
                (written + remaining).ravel(),
                group=group.ravel(),
                prompt_tokens=np.tile(t.prompt_tokens[rows], worlds),
                generated=np.tile(written, worlds),
            )
        )
        self._before = written
        self.ends_s = np.zeros((worlds, n))
        """When each has ended, so far."""
        self._place_residents(observation, rows, worlds)

    @property
    def now_s(self) -> float:
        """Since the observation."""
        return self._core.now_s

    def send(self, world: Ints, position: Ints, replica: Ints) -> None:
        """(m,) of `rows`, in this order, each in its world."""
        self._core.submit(world * self._n + position, world * len(self.living) + replica)

    def advance(self, until_s: float) -> tuple[Ints, Ints, Ints]:
        """Let time pass; the world, position and replica of each that has ended meanwhile."""
        events = self._core.advance(until_s)
        done = events.kind == EventKind.FINISHED
        row, replica = events.trajectory[done], events.replica[done]
        self.ends_s.ravel()[row] = events.time_s[done]
        return row // self._n, row % self._n, replica % len(self.living)

    def written(self, world: Ints) -> Floats:
        """(m, n) tokens since the observation, in `world` (m,)."""
        rows = world[:, None] * self._n + np.arange(self._n)
        tokens = self._core.generated_tokens(rows.ravel()).reshape(rows.shape)
        return np.asarray(tokens - self._before)

    def _place_residents(self, observation: Observation, rows: Ints, worlds: int) -> None:
        t = observation.trajectories
        place = np.full(len(observation.replicas), -1)
        place[self.living] = np.arange(len(self.living))
        at = np.where(t.phase[rows] == Phase.QUEUED, -1, place[observation.destination_row[rows]])
        here = np.flatnonzero(at >= 0)
        # a target's newcomers have no time of placement there: they are the last
        here = here[np.lexsort((here, np.nan_to_num(t.placed_s[rows[here]], nan=np.inf)))]
        every = np.arange(worlds)[:, None]
        self._core.settle(
            (self._n * every + here).ravel(), (len(self.living) * every + at[here]).ravel()
        )


class _Core(SimulatedCore):
    """A fleet that can be found at work."""

    def settle(self, rows: Ints, replicas: Ints) -> None:
        """Submit what has its context in memory already."""
        price = self._state.replicas["prefill_token_s"]
        usual = price.copy()
        price[:] = 0.0
        self.submit(rows, replicas)
        price[:] = usual


def _specs(observation: Observation, forecast: Forecast, living: Ints) -> list[ReplicaSpec]:
    f, r = forecast.throughput, observation.replicas
    positions = forecast.acceptance.acceptance.shape[1]
    drafted = np.minimum(r.draft_tokens, positions)
    tokens = expected_tokens(forecast.acceptance.acceptance)[np.arange(len(r)), drafted]
    fixed_s = f.fixed_s + f.verify_s * (drafted > 0)
    sequence_s = f.sequence_s + f.verify_token_s * drafted
    return [
        ReplicaSpec(
            fixed_s=max(float(fixed_s[i]), LEAST_FIXED_S),
            sequence_s=float(sequence_s[i]),
            token_s=float(f.token_s[i]),
            knee_s=float(f.knee_s[i]),
            prefill_token_s=float(f.prefill_token_s[i]),
            max_num_seqs=max(int(r.max_num_seqs[i]), 1),
            kv_capacity_tokens=float(r.kv_capacity_tokens[i]) or np.inf,
            tokens_per_iteration=float(tokens[i]),
        )
        for i in living.tolist()
    ]
