"""A step on real engines survives the death of a replica and of its own controller."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.results import Group, Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader
from steersman.controller.trace.writer import TraceWriter
from steersman.mechanisms.fleet import Sampling
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

PROMPTS = [Prompt(f"p{i}", [5 + i, 11, 7 + 2 * i, 3]) for i in range(8)]
CAP = 600
SAMPLING = Sampling(ignore_eos=True)


@asynccontextmanager
async def session(
    fleet: RayVllmFleet, *overrides: str
) -> AsyncIterator[tuple[RolloutSession, asyncio.Task[list[Group]]]]:
    """A session whose step is under way: every trajectory runs and has written something."""
    controller = Controller.from_config(load_config(None, list(overrides), environ={}))
    trace = TraceWriter(None)
    version = next(fleet.stats(i.name) for i in fleet.replicas if fleet.is_alive(i.name))
    async with RolloutSession(
        fleet, controller, trace=trace, weight_version=version.weight_version
    ) as opened:
        step = asyncio.create_task(
            opened.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING)
        )
        while opened.counts().queued < 32 or any(
            e.generated_tokens == 0 for e in opened._ledger.executions.values()
        ):
            await asyncio.sleep(0.005)
        yield opened, step
    assert reader.check(trace.records) == []


def check_whole(groups: list[Group]) -> None:
    assert sorted(group.prompt_id for group in groups) == [p.prompt_id for p in PROMPTS]
    for group in groups:
        assert [len(t.token_ids) for t in group.trajectories] == [CAP] * 4
        assert [len(t.logprobs) for t in group.trajectories] == [CAP] * 4


@pytest.mark.parametrize("name", ["steersman-steering", "steersman-loop"])
async def test_the_controller_killed_in_mid_step_leaves_the_default_in_charge(
    fleet: RayVllmFleet, name: str
) -> None:
    async with session(fleet) as (opened, step):
        killed_s = time.monotonic()
        next(task for task in asyncio.all_tasks() if task.get_name() == name).cancel()
        while not opened.controller_state.startswith("off"):
            await asyncio.sleep(0.005)
        assert time.monotonic() - killed_s < 1.0
        check_whole(await step)


async def test_the_controller_hung_in_mid_step_is_replaced_within_a_second(
    fleet: RayVllmFleet,
) -> None:
    async with session(fleet) as (opened, step):
        opened.controller.decide = lambda observation: time.sleep(5)  # type: ignore[method-assign, assignment, return-value]
        hung_s = time.monotonic()
        while opened.controller_state.startswith("enforcing"):
            await asyncio.sleep(0.005)
        assert time.monotonic() - hung_s < 1.3  # up to one tick before the decision even begins
        check_whole(await step)


async def test_a_replica_actor_killed_in_mid_step_loses_no_trajectory(
    fleet: RayVllmFleet,
) -> None:
    victim = await fleet.add_replica()
    async with session(fleet) as (opened, step):
        on_victim = [e for e in opened._ledger.executions.values() if e.replica == victim]
        assert on_victim
        await fleet.kill_replica(victim)
        check_whole(await step)
        counts = opened.counts()
        assert counts.unfinished == 0
        assert counts.dispositions == {"truncated": 32}
        assert any(len({s.replica for s in e.segments}) > 1 for e in on_victim)
