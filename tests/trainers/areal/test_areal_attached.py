"""AReaL 1.0.4's own engine class at the gateway's ports: requests, interruptions, weights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from areal.api import LocalInfServerInfo, ModelRequest, WeightUpdateMeta
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
from areal.api.io_struct import ParamSpec
from areal.engine.vllm_remote import RemotevLLMEngine
from areal.infra import RolloutController, workflow_context
from areal.infra.remote_inf_engine import _update_weights_from_distributed
from support.fake_model import reference
from support.gateway import Gateway, gateway

from steersman.controller.attach.environment import environment_findings
from steersman.controller.attach.findings import State
from steersman.controller.attach.trainers import AREAL
from steersman.controller.sidecar import areal

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]


@asynccontextmanager
async def attached(
    monkeypatch: pytest.MonkeyPatch, folder: Path, **knobs: Any
) -> AsyncIterator[tuple[Gateway, RemotevLLMEngine]]:
    """An engine class of AReaL that was told of the gateway's ports by its environment."""
    async with gateway(2, "gateway.shadow_ports=true", areal=True, dev=False, **knobs) as g:
        addresses = ",".join(url.removeprefix("http://") for url in g.shadows)
        monkeypatch.setenv("AREAL_LLM_SERVER_ADDRS", addresses)
        config = InferenceEngineConfig(
            backend="vllm:d2",
            experiment_name="steered",
            trial_name=folder.name,
            fileroot=str(folder),
            setup_timeout=10,
            request_timeout=60,
        )
        engine = RemotevLLMEngine(config)
        await asyncio.to_thread(engine.initialize, "0", None, 1)
        try:
            yield g, engine
        finally:
            session = await workflow_context.get_aiohttp_session()
            await session.close()
            await asyncio.to_thread(engine.destroy)


def request_of(number: int, most: int = 200) -> ModelRequest:
    hyper = GenerationHyperparameters(max_new_tokens=most, max_tokens=4096, ignore_eos=True)
    return ModelRequest(input_ids=[70, 71, 72 + number], gconfig=hyper)


def test_every_place_that_it_is_attached_by_is_in_its_source() -> None:
    version, hooks, *_ = environment_findings(AREAL, "")
    assert hooks.state is State.OK, hooks.words
    assert "areal 1.0.4" in version.words


async def test_episodes_come_back_as_from_the_engines_and_are_placed_by_the_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with attached(monkeypatch, tmp_path, token_s=0.001) as (g, engine):
        assert engine._engine.addresses == [url.removeprefix("http://") for url in g.shadows]
        answers = await asyncio.gather(*(engine.agenerate(request_of(n)) for n in range(6)))
        for number, answer in enumerate(answers):
            expected = reference([70, 71, 72 + number], 200, ignore_eos=True)
            assert answer.output_tokens == expected
            assert len(answer.output_logprobs) == 200
            assert (answer.stop_reason, answer.output_versions[0]) == ("length", 0)


async def test_an_interruption_resumes_with_the_new_weights_and_tells_the_versions_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with attached(monkeypatch, tmp_path, token_s=0.002) as (g, engine):
        calls = [asyncio.create_task(engine.agenerate(request_of(n))) for n in range(4)]
        while sum(bool(e.attempt and e.attempt.generated_tokens) for e in g.running()) < 4:
            await asyncio.sleep(0.002)
        engine.pause()
        await asyncio.to_thread(engine.pause_generation)
        assert g.desk.paused
        meta = WeightUpdateMeta(type="xccl", nccl_group_name="g")
        specs = [ParamSpec(name="w", shape=(1,), dtype="float32")]
        addresses = engine._engine.addresses
        backend = engine._engine.backend
        await asyncio.to_thread(
            _update_weights_from_distributed, backend, meta, specs, addresses, 10.0
        )
        engine.set_version(1)
        await asyncio.to_thread(engine.continue_generation)
        engine.resume()
        assert (g.desk.paused, g.desk.pace.weight_version) == (False, 1)
        for number, answer in enumerate(await asyncio.gather(*calls)):
            expected = reference([70, 71, 72 + number], 200, ignore_eos=True)
            assert answer.output_tokens == expected
            assert sorted(set(answer.output_versions)) == [0, 1]
        assert [len(fake.updates) for fake in g.fakes] == [2, 2]


def test_its_controller_takes_the_gateways_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    def initialize(
        self: Any, role: str, server_args: Any = None, server_infos: Any = None, *args: Any
    ) -> None:
        got.append(server_infos)

    class Controller(RolloutController):
        def __init__(self) -> None:
            self.rollout_alloc = SimpleNamespace(parallel=SimpleNamespace(dp_size=2))

    monkeypatch.setattr(RolloutController, "initialize", initialize)
    areal.install(["10.0.0.1:8101", "10.0.0.1:8102"])
    Controller().initialize(role="rollout", server_args={})
    assert got == [[LocalInfServerInfo("10.0.0.1", port, None) for port in (8101, 8102)]]
