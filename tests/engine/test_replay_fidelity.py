"""Real rollouts, replayed: a profile measured on the fleet gives back the fleet's own step times.

The lengths are those the engines wrote.  The profile is measured on the idle fleet and then scaled
to every other step; those between are held to it.  On a machine that does nothing else their median
error is within 10 %; the bound asserted leaves room for one that does.
"""

import sys
from pathlib import Path

import pytest
from engine.models import unmeasured

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.replay.adapting import adapt
from steersman.controller.results import Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace.writer import TraceWriter
from steersman.mechanisms.fleet import Sampling
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
from steersman.mechanisms.simulated import live

pytestmark = [
    pytest.mark.engine,
    pytest.mark.benchmark,
    pytest.mark.asyncio(loop_scope="session"),
]

STEPS, GROUPS, GROUP_SIZE, CAP = 20, 48, 8, 1500
LARGEST_ERROR = 0.3


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
    found = adapt(path, profile)
    with capsys.disabled():
        sys.stdout.write(
            f"\nthe run is {found.factor:.3f} times as slow as the idle fleet's profile says; so "
            f"scaled, {found.held_out_steps} other steps: median |error| {found.error_median:.1%}\n"
        )
    assert found.held_out_steps == STEPS // 2
    assert found.error_median <= LARGEST_ERROR
