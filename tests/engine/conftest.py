"""One fleet of two replicas for all tests of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from engine.models import random_llama

from steersman.mechanisms.ray_vllm.fleet import EngineOptions, RayVllmFleet

ENGINE = EngineOptions(dtype="float32", max_model_len=2048, max_num_seqs=64)


@pytest.fixture(scope="session")
def fleet_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llama(tmp_path_factory.mktemp("fleet-model"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(fleet_model: Path) -> AsyncIterator[RayVllmFleet]:
    fleet = await RayVllmFleet.launch(fleet_model, replicas=2, engine=ENGINE)
    yield fleet
    await fleet.close()
