"""Two fake engines, a slow one and a fast one, and the fleet over them.

A test that leaves a task behind fails.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from support.fake_vllm import FakeVllm

from steersman.mechanisms.http_vllm.fleet import HttpFleet, HttpSettings

SETTINGS = HttpSettings(scrape_s=0.02, revive_s=0.02, stall_timeout_s=30.0)


@pytest_asyncio.fixture
async def engines() -> AsyncIterator[list[FakeVllm]]:
    fakes = [FakeVllm(token_s=0.001), FakeVllm(token_s=0.0)]
    for fake in fakes:
        await fake.up()
    yield fakes
    for fake in fakes:
        await fake.down()


@pytest_asyncio.fixture
async def fleet(engines: list[FakeVllm]) -> AsyncIterator[HttpFleet]:
    before = asyncio.all_tasks()
    fleet = await HttpFleet.attach([fake.url for fake in engines], SETTINGS)
    yield fleet
    await fleet.close()
    left = {
        task for task in asyncio.all_tasks() - before
        if "steersman" in task.get_name() or "_carry" in repr(task)
    }  # fmt: skip
    assert not left, f"tasks are left: {left}"
