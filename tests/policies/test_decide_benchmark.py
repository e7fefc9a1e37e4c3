"""How long forecasting and deciding take for 10,000 trajectories on 100 replicas, one core."""

import time
from dataclasses import replace

import numpy as np
import pytest
from support.observations import ended_table, known, random_observation

from steersman.controller.plugins import load, names
from steersman.estimators.length import SurvivalLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.estimators.throughput import IterationTime

TRAJECTORIES, REPLICAS, TICKS = 10_000, 100, 24
STEADY_MS, BURST_MS = 25.0, 40.0
PHASES = (Phase.QUEUED, Phase.RUNNING, Phase.LEAVING, Phase.ENDED)


def steady(rng: np.random.Generator, queued: float = 0.02) -> Observation:
    """Most run, some wait, some siblings have ended, a few are on their way."""
    weights = (queued, 0.88 - queued, 0.02, 0.1)
    return random_observation(rng, TRAJECTORIES, REPLICAS, PHASES, weights, slots=128)


def burst(rng: np.random.Generator) -> Observation:
    """A step begins: everything waits."""
    return random_observation(rng, TRAJECTORIES, REPLICAS, (Phase.QUEUED,), slots=128)


def a_tick_later(seen: Observation, tick: int) -> Observation:
    """Everyone who runs wrote 12 tokens, the engines' counters moved, 40 trajectories ended."""
    t, r = seen.trajectories, seen.replicas
    wrote = np.where(t.phase == Phase.RUNNING, 12, 0)
    table = replace(t, generated_tokens=np.minimum(t.generated_tokens + wrote, t.max_new_tokens))
    moved = replace(
        r,
        iterations=r.iterations + 12,
        busy_s=r.busy_s + 0.25,
        sequences_run=r.sequences_run + 12 * r.running,
    )
    rng = np.random.default_rng(tick)
    ended = ended_table(np.exp(rng.normal(6.5, 1.0, 40)).astype(np.int64))
    now_s = seen.now_s + 0.25
    return replace(
        seen, now_s=now_s, trajectories=table, replicas=moved, ended=ended, tick=seen.tick + 1
    )


def median_ms(name: str, seen: Observation) -> tuple[float, int]:
    """Median time of a tick, and decisions in the last one."""
    policy = load("policies.placement", name)()
    length, throughput = SurvivalLength(), IterationTime()
    taken_ms, decisions = [], []
    for tick in range(TICKS):
        seen = a_tick_later(seen, tick)
        start = time.process_time()  # what else runs on the machine does not count
        length.observe(seen)
        throughput.observe(seen)
        forecast = known(seen, length, throughput)
        decisions = policy.decide(seen, forecast, np.random.default_rng(tick))
        taken_ms.append((time.process_time() - start) * 1000)
    return float(np.median(taken_ms)), len(decisions)


@pytest.mark.benchmark
@pytest.mark.parametrize("name", names("policies.placement"))
def test_a_steady_tick_fits_its_budget(name: str) -> None:
    for queued in (0.02, 0.0):
        taken_ms, decisions = median_ms(name, steady(np.random.default_rng(0), queued))
        print(f"{name} queued {queued}: {taken_ms:.1f} ms, {decisions} decisions")  # noqa: T201
        assert taken_ms <= STEADY_MS


@pytest.mark.benchmark
@pytest.mark.parametrize("name", names("policies.placement"))
def test_a_burst_fits_its_budget(name: str) -> None:
    taken_ms, decisions = median_ms(name, burst(np.random.default_rng(0)))
    print(f"{name} burst: {taken_ms:.1f} ms, {decisions} decisions")  # noqa: T201
    assert 0 < decisions <= TRAJECTORIES  # some hold trajectories back until there is room
    assert taken_ms <= BURST_MS
