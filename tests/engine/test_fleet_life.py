"""Replicas that come, die, hang and are shared, and clusters that are not there."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from engine.test_attempts import FREE, GREEDY, end_of, ended, first, request, written
from engine.test_weights import PROBE, load, tensors

from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.mechanisms.fleet import EndReason
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
from steersman.mechanisms.ray_vllm.weights import read_folder

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


def runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


async def gone(*pids: int) -> None:
    while any(runs(pid) for pid in pids):
        await asyncio.sleep(0.01)


async def test_a_killed_replicas_attempts_end_lost_with_all_that_was_known(
    fleet: RayVllmFleet, fleet_model: Path
) -> None:
    model = load(fleet_model)
    version = fleet.stats(first(fleet)).weight_version + 1
    await fleet.update_weights(tensors(model), version)
    name = await fleet.add_replica(pool="tail")
    assert fleet.replicas[-1].pool == "tail"
    whole = fleet.start(first(fleet), request([3, 4, 5], 1500, GREEDY))
    await ended(whole)
    ends: list[str] = []
    attempts = [fleet.start(name, request([3, 4, 5], 1500, GREEDY)) for _ in range(4)]
    for attempt in attempts:
        attempt.on_end(lambda a: ends.append(a.request.attempt_id))
        await written(attempt, 20)
    known = [attempt.generated_tokens for attempt in attempts]
    pids = await fleet.processes(name)
    fleet.changed.clear()
    os.kill(pids[0], signal.SIGKILL)
    await fleet.changed.wait()
    await ended(*attempts)
    assert not fleet.is_alive(name)
    assert len(ends) == 4
    for attempt, tokens in zip(attempts, known, strict=True):
        end = end_of(attempt)
        assert end.reason is EndReason.LOST
        assert tokens <= len(end.tokens) == len(end.logprobs) == end.spans[-1].end
        assert end.tokens == end_of(whole).tokens[: len(end.tokens)]
        assert end.spans[0].weight_version == version  # the push reached the newcomer
    await gone(*pids)
    late = fleet.start(name, request([3], 5))
    assert end_of(late).reason is EndReason.LOST


async def test_a_replica_without_the_model_folder_gets_it_and_is_lost_when_its_engine_dies(
    fleet: RayVllmFleet, fleet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet._launcher, "model", "/nowhere/on/this/machine")
    monkeypatch.setattr(fleet._launcher, "_files", [ray.put(read_folder(str(fleet_model)))])
    name = await fleet.add_replica()
    assert await fleet.score(name, PROBE) == await fleet.score(first(fleet), PROBE)
    attempt = fleet.start(name, request([3, 4], 2000, FREE))
    await written(attempt, 1)
    pids = await fleet.processes(name)
    os.kill(pids[1], signal.SIGKILL)
    await ended(attempt)
    assert end_of(attempt).reason is EndReason.LOST
    assert "engine died" in end_of(attempt).detail
    assert not fleet.is_alive(name)
    await gone(*pids)


async def test_a_second_fleet_shares_replicas_and_judges_for_itself_when_one_hangs(
    fleet: RayVllmFleet,
) -> None:
    name = await fleet.add_replica()
    second = await RayVllmFleet.attach([name], fleet.namespace, stall_timeout_s=2.0)
    assert list(second.replicas) == [fleet.replicas[-1]]
    attempts = [f.start(name, request([3, 4], 1900, FREE)) for f in (fleet, second)]
    for attempt in attempts:
        await written(attempt, 1)
    pids = await fleet.processes(name)
    os.kill(pids[0], signal.SIGSTOP)
    await ended(attempts[1])
    assert end_of(attempts[1]).reason is EndReason.LOST
    assert end_of(attempts[1]).detail == "it has not answered for 2 s"
    assert not second.is_alive(name)
    await second.close()
    os.kill(pids[0], signal.SIGCONT)
    await ended(attempts[0])
    assert end_of(attempts[0]).reason is EndReason.LENGTH
    await fleet.kill_replica(name)
    await gone(*pids)


ATTACH = """
import asyncio, sys
from steersman.mechanisms.fleet import AttemptRequest, Sampling
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

async def main(address, namespace, name):
    fleet = await RayVllmFleet.attach([name], namespace, address)
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    running = fleet.start(name, AttemptRequest("other-0", [8, 9], 1500, sampling))
    attempt = fleet.start(name, AttemptRequest("other-1", [5, 6, 7], 30, sampling))
    while attempt.end is None:
        fleet.changed.clear()
        await fleet.changed.wait()
    await fleet.close()
    assert running.end.reason == "lost", running.end
    print(*attempt.end.tokens)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_process_attaches_by_name_and_leaves_the_replica_running(
    fleet: RayVllmFleet,
) -> None:
    name = first(fleet)
    mine = fleet.start(name, request([5, 6, 7], 30, GREEDY))
    await ended(mine)
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ATTACH, fleet.address, fleet.namespace, name),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await other.communicate()
    assert other.returncode == 0, err.decode()
    assert [int(token) for token in out.split()] == end_of(mine).tokens
    again = fleet.start(name, request([5, 6, 7], 30, GREEDY))
    await ended(again)
    assert end_of(again).tokens == end_of(mine).tokens


async def test_engines_on_a_cluster_of_ours_are_served_as_soon_as_any_process(
    fleet: RayVllmFleet,
) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    for pid in await fleet.processes(first(fleet)):
        assert os.getpriority(os.PRIO_PROCESS, pid) == mine


async def test_attaching_to_an_unknown_name_is_refused(fleet: RayVllmFleet) -> None:
    with pytest.raises(FleetError, match="no replica 'nobody' in Ray namespace"):
        await RayVllmFleet.attach(["nobody"], fleet.namespace)


async def test_a_name_that_is_taken_is_refused(fleet: RayVllmFleet, fleet_model: Path) -> None:
    with pytest.raises(FleetError, match="has a replica 'replica-0' already"):
        await RayVllmFleet.launch(fleet_model, 1, namespace=fleet.namespace)
    assert fleet.is_alive(first(fleet))


async def test_pools_must_match_the_replicas(fleet_model: Path) -> None:
    with pytest.raises(InvalidInputError, match="2 replicas with 1 pools"):
        await RayVllmFleet.launch(fleet_model, 2, pools=["bulk"])


LAUNCH = """
import asyncio, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
from steersman.estimators.errors import SteersmanError
from steersman.mechanisms.ray_vllm.fleet import EngineOptions, RayVllmFleet

async def main(model, address):
    engine = EngineOptions(dtype="float32", max_model_len=256, draft_tokens=4)
    fleet = await RayVllmFleet.launch(model, 1, engine=engine, address=address or None)
    print(fleet.namespace, *await fleet.processes("replica-0"), flush=True)
    await asyncio.Event().wait()

try:
    asyncio.run(main(*sys.argv[1:]))
except SteersmanError as error:
    sys.exit(f"error: {error}")
"""


def shared_memory(namespace: str) -> list[Path]:
    """Files of a fleet's draft stores."""
    return list(Path("/dev/shm").glob(f"*{namespace}*"))


def launch(model: Path, address: str = "") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(model), address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_a_dead_address_is_one_line_within_seconds(fleet_model: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        started_s = time.monotonic()
        with launch(fleet_model, address) as process:
            _, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == 1
    assert err.splitlines() == [
        f"error: no Ray cluster at {address!r}: [Errno 111] Connection refused"
    ]
    assert time.monotonic() - started_s < 15


async def test_a_wrong_address_is_one_line(fleet_model: Path) -> None:
    with launch(fleet_model, "somewhere") as process:
        _, err = await asyncio.to_thread(process.communicate)
    assert err.strip() == "error: Ray address 'somewhere' is not valid; valid: host:port, or auto"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_nothing_outlives_a_driver_that_is_interrupted_or_killed(
    fleet_model: Path, how: signal.Signals
) -> None:
    with launch(fleet_model) as process:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        namespace, *numbers = line.split()
        pids = [int(pid) for pid in numbers]
        assert all(runs(pid) for pid in pids)
        assert len(pids) == 2
        assert len(shared_memory(namespace)) == 1
        process.send_signal(how)
        await asyncio.to_thread(process.communicate)
    await gone(*pids)
    while shared_memory(namespace):
        await asyncio.sleep(0.01)
