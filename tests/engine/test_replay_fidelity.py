"""Real rollouts, replayed: a profile measured on the fleet gives back the fleet's own step times.

The lengths are those the engines wrote.  On a machine that does nothing else the median error is
within 10 %; the bound asserted leaves room for one that does.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from engine.models import unmeasured

from steersman.controller.calibration.steps import Plan
from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import replay
from steersman.controller.replay.sources import load_workload
from steersman.controller.results import Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import records
from steersman.controller.trace.reader import read
from steersman.controller.trace.writer import TraceWriter
from steersman.mechanisms.fleet import Sampling
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
from steersman.mechanisms.simulated import live

pytestmark = [
    pytest.mark.engine,
    pytest.mark.benchmark,
    pytest.mark.asyncio(loop_scope="session"),
]

STEPS, GROUPS, GROUP_SIZE, CAP = 10, 48, 8, 1500
LARGEST_ERROR = 0.4


async def test_replayed_steps_take_as_long_as_they_took(
    fleet: RayVllmFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(None, ["placement.name=sticky_least_inflight"], environ={})
    labels = unmeasured(fleet, max_num_seqs=fleet.replicas[0].max_num_seqs)
    profile = await live.measure(fleet, labels)
    path = tmp_path / "run.jsonl"
    sampling = Sampling(seed=1)  # the random model ends a sequence every 50 tokens or so
    async with RolloutSession(
        fleet, Controller.from_config(config), trace=TraceWriter(path)
    ) as session:
        for step in range(STEPS):
            prompts = [Prompt(f"p{step}-{i}", [5 + i, 11, 7 + step, 3]) for i in range(GROUPS)]
            await session.rollout(prompts, GROUP_SIZE, max_new_tokens=CAP, sampling=sampling)
    took = np.array([r.seconds for r in read(path) if isinstance(r, records.StepEnded)])
    run = replay(load_workload(path, Plan()), FleetPlan(profile, 2), config)
    simulated = np.array([step.makespan_s for step in run.steps])
    error = simulated / took - 1
    lengths = [step.mean_length_asked for step in run.steps]
    with capsys.disabled():
        sys.stdout.write(
            f"\nmean length {np.mean(lengths):.0f}, steps of {np.median(took):.2f} s; replayed: "
            f"median error {np.median(error):+.1%}, median |error| {np.median(np.abs(error)):.1%}, "
            f"worst {np.abs(error).max():.1%}\n"
        )
    assert len(took) == STEPS
    assert np.median(np.abs(error)) <= LARGEST_ERROR
