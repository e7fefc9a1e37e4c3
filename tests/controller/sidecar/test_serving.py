"""A gateway as a process beside a trainer."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from support.fake_vllm import FakeVllm

from steersman.controller.sidecar.serving import start_gateway
from steersman.estimators.errors import FleetError

PARENT = """
import sys
from steersman.controller.sidecar.serving import start_gateway
sidecar = start_gateway(sys.argv[1:])
print(sidecar.process.pid, sidecar.url, flush=True)
sys.stdin.read()
"""


async def test_each_engine_has_an_address_at_it_and_it_ends_when_told() -> None:
    async with FakeVllm() as one, FakeVllm() as two:
        sidecar = await asyncio.to_thread(start_gateway, [one, two + "/"])
        try:
            assert sidecar.shadow(two) == f"{sidecar.url}/engines/engine-1"
            with pytest.raises(FleetError, match="does not know the engine at http://x:1"):
                sidecar.shadow("http://x:1")
            address = sidecar.shadow(two) + "/health"
            async with aiohttp.ClientSession() as client, client.get(address) as answer:
                assert answer.headers["X-Steersman-Engines"] == "engine-1"
        finally:
            await asyncio.to_thread(sidecar.stop)
        assert sidecar.process.returncode == 0


async def test_it_ends_with_the_process_that_started_it_however_that_ends() -> None:
    async with FakeVllm() as url:
        command = [sys.executable, "-c", PARENT, url]
        parent = await asyncio.to_thread(
            subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        pid, address = (await asyncio.to_thread(parent.stdout.readline)).split()
        async with aiohttp.ClientSession() as client, client.get(f"{address}/health") as answer:
            assert answer.status == 200
        os.kill(parent.pid, signal.SIGKILL)
        await asyncio.to_thread(parent.wait)
        parent.stdout.close()
        assert parent.stdin is not None
        parent.stdin.close()
        while await asyncio.to_thread(is_running, int(pid)):
            await asyncio.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def test_one_that_does_not_start_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    async with FakeVllm() as url:
        gone = url
    with pytest.raises(FleetError, match=r"did not start \(exit code 2\); its error is above"):
        await asyncio.to_thread(start_gateway, [gone])
    assert "no engine answers" in capfd.readouterr().err
