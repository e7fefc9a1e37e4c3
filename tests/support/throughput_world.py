"""Engines as far as their counters show them: affine ones, and ones that run rollout steps.

The latter: each replica draws a batch of heavy-tailed answers per step, runs what fits, refills
from its queue, thins out towards the step's end and starts the next.  An iteration takes

    overhead + max(weights + kv * read, b * compute) + knee * max(usage - 0.92, 0) + prefill * p

seconds, times the replica's slowness, times noise per tick.  The maximum of memory and compute is
not affine on purpose: the estimator must live with that.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.forecast import KNEE
from steersman.estimators.observation import Observation
from steersman.estimators.throughput import IterationTime

FIXED_S, PER_SEQUENCE_S = 0.012, 0.00015


@dataclass(frozen=True)
class Engine:
    """Seconds and sizes: an 8-billion-parameter model on a current accelerator, roughly."""

    overhead_s: float = 0.002
    weights_s: float = 0.0048
    read_s: float = 4e-8
    """Per token of context."""
    compute_s: float = 6e-5
    """Per sequence."""
    knee_s: float = 0.1
    prefill_s: float = 3e-5
    """Per prompt token."""
    kv_capacity: int = 200_000
    slots: int = 128

    def iteration_s(self, batch: Any, kv: Any, prefill: Any = 0.0) -> Any:
        """Without noise; broadcasts."""
        decode = np.maximum(self.weights_s + kv * self.read_s, batch * self.compute_s)
        above = np.maximum(kv / self.kv_capacity - KNEE, 0.0)
        return self.overhead_s + decode + self.knee_s * above + self.prefill_s * prefill


class RolloutEngines:
    """`count` replicas; `slowness` (r,) may be changed at any time."""

    def __init__(self, count: int, seed: int, engine: Engine | None = None) -> None:
        self.engine, self.count, self.noise = engine or Engine(), count, 0.04
        self.rng = np.random.default_rng(seed)
        self.slowness, self.prompt = np.ones(count), 200
        self.now_s, self.iterations_per_tick = 0.0, 20
        self.counters = np.zeros((4, count))
        """iterations, busy_s, sequences_run, prefill_tokens"""
        self.left: list[np.ndarray] = [np.zeros(0)] * count
        self.context: list[np.ndarray] = [np.zeros(0)] * count
        self.queue = np.zeros(count, dtype=np.int64)
        self.load = np.zeros((3, count))
        """Mean sequences, context tokens and prompt tokens of an iteration of the last tick."""
        self.took_s = np.zeros(count)
        """What one took on average."""
        self.tick()

    def tick(self) -> None:
        """Some iterations of every replica."""
        n = self.iterations_per_tick
        for r in range(self.count):
            if not len(self.left[r]) and not self.queue[r]:
                self.queue[r] = self.rng.integers(self.engine.slots // 2, 3 * self.engine.slots)
            room = self.engine.kv_capacity - self.context[r].sum()
            fits = int(max(room, 0) // (3 * self.prompt))
            new = min(int(self.queue[r]), self.engine.slots - len(self.left[r]), fits)
            self.queue[r] -= new
            length = np.clip(np.exp(self.rng.normal(7.2, 0.8, new)), 40, 16_000)
            self.left[r] = np.concatenate((self.left[r], length))
            self.context[r] = np.concatenate((self.context[r], np.full(new, float(self.prompt))))
            ran = np.minimum(self.left[r], n)
            batch = ran.sum() / n
            kv = min(self.context[r].sum() + ran.sum() / 2, float(self.engine.kv_capacity))
            prefill = new * self.prompt / n
            self.load[:, r] = batch, kv, prefill
            clean_s = self.slowness[r] * self.engine.iteration_s(batch, kv, prefill)
            self.took_s[r] = clean_s * (1 + self.noise * self.rng.standard_normal())
            self.counters[:, r] += n * np.array((1.0, self.took_s[r], batch, prefill))
            self.context[r], self.left[r] = self.context[r] + ran, self.left[r] - ran
            alive = self.left[r] > 1e-9
            self.context[r], self.left[r] = self.context[r][alive], self.left[r][alive]
        self.now_s += 0.25

    def seen(self, **columns: Any) -> Observation:
        """What a controller would observe now."""
        capacity = float(self.engine.kv_capacity)
        usage = [min(context.sum() / capacity, 1.0) for context in self.context]
        table = replica_table(
            self.count,
            running=[len(left) for left in self.left],
            waiting=self.queue.copy(),
            kv_cache_usage=usage,
            kv_capacity_tokens=np.full(self.count, self.engine.kv_capacity),
            iterations=self.counters[0].astype(np.int64),
            busy_s=self.counters[1].copy(),
            sequences_run=self.counters[2].copy(),
            prefill_tokens=self.counters[3].astype(np.int64),
            **columns,
        )
        return observation(trajectory_table([]), table, now_s=self.now_s)


class Engines:
    """Counters of engines that obey tau(b) = M + c b, with noise."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.count, self.now_s = count, 0.0
        self.fixed_s, self.per_sequence_s = np.full(count, FIXED_S), np.full(count, PER_SEQUENCE_S)
        self.counters = np.zeros((3, count))

    def run(self, batch: np.ndarray, iterations: int = 20, noise: float = 0.1) -> None:
        tau = self.fixed_s + self.per_sequence_s * batch
        tau = tau * (1 + noise * self.rng.standard_normal(self.count))
        self.counters += np.stack(
            (np.full(self.count, iterations), iterations * tau, iterations * batch)
        )
        self.now_s += 0.25

    def seen(self, **columns: object) -> Observation:
        return observation(
            trajectory_table([]),
            replica_table(
                self.count,
                iterations=self.counters[0].astype(np.int64),
                busy_s=self.counters[1].copy(),
                sequences_run=self.counters[2].copy(),
                **columns,
            ),
            now_s=self.now_s,
        )


def watched(engines: Engines, estimator: IterationTime, ticks: int = 200) -> None:
    """Batches of 1 to 199, one sample a tick."""
    for _ in range(ticks):
        estimator.observe(engines.seen())
        engines.run(engines.rng.integers(1, 200, engines.count).astype(np.float64))
    estimator.observe(engines.seen())


def errors(world: RolloutEngines, estimator: IterationTime, ticks: int) -> np.ndarray:
    """(ticks, r) |predicted - measured| / measured of the next sample, at its load."""
    found = []
    for _ in range(ticks):
        seen = world.seen()
        estimator.observe(seen)
        forecast = estimator.forecast(seen)
        world.tick()
        batch, kv, prefill = world.load
        predicted = forecast.iteration_s(batch, kv) + forecast.prefill_token_s * prefill
        found.append(np.abs(predicted - world.took_s) / world.took_s)
    return np.array(found)
