"""Weights by file: to every engine, with their version, and checked."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fake_sampler import FakeSampler
from support.trl_scene import tensors

from steersman.controller.sidecar.trl.client import Client
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.weights import FileWeightTransfer
from steersman.estimators.errors import FleetError, InvalidInputError, WeightMismatchError

pytest.importorskip("safetensors.torch")


@asynccontextmanager
async def scene(
    folder: Path, *, gateway: bool = False, developer: bool = True, **options: Any
) -> AsyncIterator[tuple[FileWeightTransfer, list[FakeSampler]]]:
    async with AsyncExitStack() as stack:
        fakes = [
            await stack.enter_async_context(FakeSampler(developer=developer)) for _ in range(2)
        ]
        front = await stack.enter_async_context(FakeSampler(steers=True)) if gateway else None
        endpoints = Endpoints(
            front.url if front else "", [f.url for f in fakes], on_loss="plain", patience_s=0.3
        )
        transfer = FileWeightTransfer(endpoints, folder, **options)
        yield transfer, fakes if front is None else [front, *fakes]


async def push(transfer: FileWeightTransfer) -> None:
    await asyncio.to_thread(transfer.push, tensors())


async def test_every_engine_loads_the_file_and_learns_the_version(tmp_path: Path) -> None:
    async with scene(tmp_path) as (transfer, fakes):
        await asyncio.to_thread(transfer.init_weight_transfer)
        await push(transfer)
        await push(transfer)
        assert transfer.weight_version == transfer.endpoints.weight_version == 2
        for fake in fakes:
            assert fake.weight_version == "2"
            assert fake.loaded == [["model-00000.safetensors"]] * 2
            routes = ["/pause", "/collective_rpc", "/update_weight_version", "/resume"]
            assert fake.called == routes * 2


async def test_through_a_gateway_one_call_is_for_all(tmp_path: Path) -> None:
    async with scene(tmp_path, gateway=True) as (transfer, (gateway, *fakes)):
        await asyncio.to_thread(transfer.init_weight_transfer)
        await push(transfer)
        assert gateway.weight_version == "1"
        assert not any(fake.called for fake in fakes)


async def test_a_gateway_lost_in_the_middle_of_a_push_does_not_lose_it(tmp_path: Path) -> None:
    async with scene(tmp_path, gateway=True) as (transfer, (gateway, *fakes)):
        await asyncio.to_thread(transfer.pause)
        await gateway.down()
        await asyncio.to_thread(transfer.send_weights, iter(tensors()))
        await asyncio.to_thread(transfer.resume)
        for fake in fakes:
            assert fake.weight_version == "1"
            assert fake.called[0] == "/pause"
            assert not fake.paused


async def test_files_hold_what_was_sent_and_are_removed(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    async with scene(tmp_path) as (transfer, _):
        await push(transfer)
        await push(transfer)
        (folder,) = tmp_path.iterdir()
        (newest,) = folder.iterdir()
        loaded = load_file(newest / "model-00000.safetensors")
        assert loaded.keys() == {"embed.weight", "head.weight", "norm.weight"}
        for name, tensor in tensors():
            assert torch.equal(loaded[name], tensor)
        transfer.destroy()
        assert list(tmp_path.iterdir()) == []


async def test_what_killed_runs_left_in_memory_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for name in (f"steersman-weights-{ended.pid}-a", f"steersman-weights-{os.getppid()}-b", "mine"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("steersman.controller.sidecar.trl.weights.IN_MEMORY", tmp_path)
    async with scene(tmp_path) as (given, _):
        await push(given)  # it was told where: others' folders there are not its own
        given.destroy()
        assert len(list(tmp_path.iterdir())) == 3
        transfer = FileWeightTransfer(given.endpoints)
        await push(transfer)
        transfer.destroy()
    left = sorted(folder.name for folder in tmp_path.iterdir())
    assert left == ["mine", f"steersman-weights-{os.getppid()}-b"]


async def test_an_engine_that_missed_the_weights_gets_no_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path) as (transfer, fakes):
        await fakes[0].down()
        with caplog.at_level(logging.WARNING):
            await push(transfer)
        assert any(fakes[0].url in record.message for record in caplog.records)
        await fakes[0].up()
        async with Client(transfer.endpoints) as client:
            body = {"prompt": [1], "n": 1, "max_tokens": 3, "seed": 1}
            assert {(await client.complete(body, {})).at for _ in range(3)} == {fakes[1].url}
            await push(transfer)
            assert len({(await client.complete(body, {})).at for _ in range(4)}) == 2


async def test_a_gateway_that_reaches_only_some_engines_is_no_mismatch_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path, gateway=True) as (transfer, (gateway, *fakes)):
        await asyncio.to_thread(transfer.init_weight_transfer)
        gateway.names, fakes[1].skew = "engine-0", 0.5  # it has old weights
        with caplog.at_level(logging.WARNING):
            await push(transfer)
            await push(transfer)
        assert [r.message for r in caplog.records] == [
            "1 of 2 engines missed weights 1, and get no requests until they have some"
        ]
        gateway.names = "engine-0, engine-1"
        with pytest.raises(WeightMismatchError, match=r"differ by 0\.500 nats"):
            await push(transfer)


async def test_an_engine_that_did_not_take_the_version_is_named(tmp_path: Path) -> None:
    async with scene(tmp_path) as (transfer, fakes):
        fakes[1].forgets = True
        with pytest.raises(WeightMismatchError, match=f"{fakes[1].url} reports weights default"):
            await push(transfer)


async def test_an_engine_that_computes_otherwise_is_named(tmp_path: Path) -> None:
    async with scene(tmp_path) as (transfer, fakes):
        await asyncio.to_thread(transfer.init_weight_transfer)
        fakes[1].skew = 0.2
        with pytest.raises(WeightMismatchError, match=r"differ by 0\.200 nats"):
            await push(transfer)


async def test_engines_that_do_not_compute_what_the_trainer_does_are_found_out(
    tmp_path: Path,
) -> None:
    def reference(tokens: Any) -> list[float]:
        return [-0.1 * token - 0.3 for token in tokens[1:]]

    async with scene(tmp_path, reference=reference) as (transfer, _):
        with pytest.raises(WeightMismatchError, match=r"and the trainer differ by 0\.300"):
            await push(transfer)


async def test_engines_without_developer_routes_are_told_apart(tmp_path: Path) -> None:
    async with scene(tmp_path, developer=False) as (transfer, _):
        with pytest.raises(FleetError, match="VLLM_SERVER_DEV_MODE=1"):
            await asyncio.to_thread(transfer.init_weight_transfer)


async def test_what_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as (transfer, fakes):
        with pytest.raises(InvalidInputError, match="the iterator was empty"):
            await asyncio.to_thread(transfer.push, [])
        assert not fakes[0].paused
        await push(transfer)
        with pytest.raises(InvalidInputError, match="1 is not newer than 1"):
            await asyncio.to_thread(transfer.push, tensors(), 1)
    with pytest.raises(InvalidInputError, match='valid: "keep", "wait", "abort"'):
        FileWeightTransfer(transfer.endpoints, pause="never")  # type: ignore[arg-type]
    nowhere = FileWeightTransfer(transfer.endpoints, tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match="is no folder"):
        nowhere._written(iter(tensors()), 1)


async def test_large_models_are_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steersman.controller.sidecar.trl.weights.SHARD_BYTES", 30)
    async with scene(tmp_path) as (transfer, fakes):
        await push(transfer)
        assert fakes[0].loaded == [[f"model-{n:05d}.safetensors" for n in range(3)]]
