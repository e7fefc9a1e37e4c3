"""A whole forecast for 10,000 trajectories on 100 replicas: 12 ms with numpy, 4 ms compiled.

One core, CPU time of this process, median; all five estimators, as the controller asks them.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.observations import ended_table, random_observation

from steersman.controller.config import Config
from steersman.controller.core import Estimators
from steersman.estimators import _outlook
from steersman.estimators.length import SurvivalLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation, RewardTable, TrainerSignal

TRAJECTORIES, REPLICAS, GROUPS, GROUP_SIZE = 10_000, 100, 1250, 8
NUMPY_LIMIT_S, COMPILED_LIMIT_S = 0.012, 0.004
REPEATS = 31

pytestmark = pytest.mark.benchmark


def busy(step: int) -> Observation:
    """Everything runs or waits; a step's worth of trajectories has just ended."""
    rng = np.random.default_rng(step)
    seen = random_observation(
        rng, TRAJECTORIES, REPLICAS, phases=(Phase.RUNNING, Phase.QUEUED), weights=(0.98, 0.02)
    )
    group = np.repeat(np.arange(GROUPS), GROUP_SIZE)
    ended = ended_table(
        np.exp(rng.normal(6.5, 1.0, TRAJECTORIES)).astype(np.int64) + 1,
        group_id=group + 10_000 * (step + 1),
        prompt_key=group + 7_000,
    )
    rewarded = RewardTable(
        ended.trajectory_id,
        ended.group_id,
        ended.prompt_key,
        np.full(TRAJECTORIES, GROUP_SIZE),
        (rng.random(TRAJECTORIES) < 0.4).astype(np.float64),
        np.full(TRAJECTORIES, step),
    )
    trainer = TrainerSignal(step=step, weight_version=step)
    return replace(seen, trainer=trainer, ended=ended, rewarded=rewarded)


def median_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return statistics.median(times)


@pytest.fixture
def estimators() -> Estimators:
    built = Estimators.from_config(Config())
    for step in range(3):
        built.forecast(busy(step))
    return built


@pytest.fixture(params=["numpy", "compiled"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(_outlook, "_fastest", lambda: _outlook.arrays)
    else:
        pytest.importorskip("numba", reason="the compiled form needs numba")
    return request.param


def test_a_whole_forecast_is_in_time(
    estimators: Estimators, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = busy(3)
    parts = estimators.named()
    for part in parts.values():
        part.observe(seen)
    costs = {name: median_s(lambda p=part: p.forecast(seen)) for name, part in parts.items()}  # type: ignore[attr-defined]
    whole_s = median_s(lambda: [part.forecast(seen) for part in parts.values()])  # type: ignore[attr-defined]
    quiet = replace(seen, ended=seen.ended.empty(), rewarded=seen.rewarded.empty())
    observing_s = median_s(lambda: [part.observe(quiet) for part in parts.values()])
    with capsys.disabled():
        by_part = ", ".join(f"{name} {1e3 * cost:.2f}" for name, cost in costs.items())
        sys.stdout.write(
            f"\n{form}: forecast {1e3 * whole_s:.1f} ms ({by_part}); "
            f"observing {1e3 * observing_s:.1f} ms\n"
        )
    assert whole_s <= (NUMPY_LIMIT_S if form == "numpy" else COMPILED_LIMIT_S)


def test_a_million_prompts_take_a_bounded_memory() -> None:
    """48 bytes each; what is beyond `max_prompts` is forgotten, the longest unseen first."""
    estimator, limit = SurvivalLength(max_prompts=200_000), 200_000
    per_step = 50_000
    for step in range(6):
        keys = np.arange(per_step) + per_step * step
        ended = ended_table(np.full(per_step, 500), prompt_key=keys, group_id=keys)
        nobody = random_observation(np.random.default_rng(0), 0, 1, step=step, weight_version=step)
        estimator.observe(replace(nobody, ended=ended))
    table = estimator.prompts
    assert len(table.keys) == limit
    assert table.nbytes == 48 * limit
