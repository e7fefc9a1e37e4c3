"""`steersman serve` as a process: it opens, drains, ends, and says in one line what is wrong."""

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.certificates import own_certificate
from support.fake_vllm import FakeVllm
from support.processes import LISTENING, processes_of

from steersman.controller import cli
from steersman.controller.trace import records
from steersman.controller.trace.reader import read

PATIENCE_S = 60.0
PROMPT = "a prompt that nobody else should read"


@dataclass
class Served:
    """A gateway in a process of its own."""

    process: asyncio.subprocess.Process
    told: dict[str, Any]
    """What it announced."""
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return str(self.told["url"])

    async def complete(self, max_tokens: int, **headers: str) -> tuple[int, Any]:
        body = {"model": "fake-model", "prompt": PROMPT, "max_tokens": max_tokens}
        path = f"{self.url}/v1/completions"
        async with self.client.post(path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def until_draining(self) -> None:
        """Returns once it has taken a signal."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with self.client.get(f"{self.url}/health") as response:
                    if response.status == 503:
                        return

    async def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Its exit code, after a signal if there is one, and what it said on stderr."""
        if number is not None:
            self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        assert processes_of(self.process.pid) == []
        return self.process.returncode, errors.decode()


async def start(*argv: str, script: str = LISTENING, **environ: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        "serve",
        *argv,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **environ},
    )


@asynccontextmanager
async def served(*argv: str, script: str = LISTENING, **environ: str) -> AsyncIterator[Served]:
    process = await start("--port=0", "--json", *argv, script=script, **environ)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = await process.stdout.readline()
        if not line:
            _, errors = await process.communicate()
            raise AssertionError(errors.decode())
        async with aiohttp.ClientSession() as client:
            yield Served(process, json.loads(line), client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def begun(fake: FakeVllm) -> None:
    """Returns once the engine writes something."""
    async with asyncio.timeout(PATIENCE_S):
        while not fake.running:
            await asyncio.sleep(0.005)


async def test_it_opens_answers_records_and_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    async with (
        FakeVllm() as a,
        FakeVllm() as b,
        served("--engines", a, b, "mode=shadow", "--trace", str(trace)) as gateway,
    ):
        assert gateway.told["mode"] == "shadow"
        assert gateway.told["engines"] == {"engine-0": a, "engine-1": b}
        assert gateway.told["shadows"] == {}
        status, body = await gateway.complete(max_tokens=8)
        assert (status, body["usage"]["completion_tokens"]) == (200, 8)
        code, errors = await gateway.end(signal.SIGINT)
    assert code == 0
    assert errors.count("\n") == 1
    assert "SIGINT: draining" in errors
    assert PROMPT not in errors + trace.read_text()
    ended = [record for record in read(trace) if isinstance(record, records.RunEnded)]
    assert [record.clean for record in ended] == [True]


async def test_told_to_end_it_answers_what_is_under_way_and_takes_nothing_in() -> None:
    fake = FakeVllm(token_s=0.002, eos_share=0.0)
    async with fake as url, served("--engines", url) as gateway:
        under_way = asyncio.create_task(gateway.complete(max_tokens=1000))
        await begun(fake)
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.until_draining()
        body = {"model": "fake-model", "prompt": "late"}
        async with gateway.client.post(f"{gateway.url}/v1/completions", json=body) as late:
            assert late.status == 503
            assert int(late.headers["Retry-After"]) >= 1
        assert not under_way.done()
        status, answer = await under_way
        assert (status, answer["usage"]["completion_tokens"]) == (200, 1000)
        assert (await gateway.end())[0] == 0


async def test_what_does_not_end_in_time_is_answered_with_what_it_has() -> None:
    fake = FakeVllm(token_s=0.01, eos_share=0.0)
    async with fake as url, served("--engines", url, "gateway.drain_s=0.3") as gateway:
        under_way = asyncio.create_task(gateway.complete(max_tokens=30_000))
        await begun(fake)
        code, errors = await gateway.end(signal.SIGTERM)
        status, answer = await under_way
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "abort")
        assert 0 < answer["usage"]["completion_tokens"] < 30_000
    assert code == 0
    assert "1 requests did not end within 0.3 s and were aborted" in errors


async def test_a_second_signal_ends_the_wait() -> None:
    fake = FakeVllm(token_s=0.01, eos_share=0.0)
    async with fake as url, served("--engines", url, "gateway.drain_s=1000") as gateway:
        under_way = asyncio.create_task(gateway.complete(max_tokens=30_000))
        await begun(fake)
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.until_draining()
        assert (await gateway.end(signal.SIGINT))[0] == 130
        assert (await under_way)[1]["choices"][0]["finish_reason"] == "abort"


async def test_a_client_that_does_not_read_cannot_keep_it_from_ending() -> None:
    fake = FakeVllm(eos_share=0.0)
    async with fake as url, served("--engines", url, "gateway.drain_s=0.2") as gateway:
        body = {"model": "fake-model", "prompt": "x", "max_tokens": 30_000, "logprobs": 1}
        body["stream"] = True
        async with gateway.client.post(f"{gateway.url}/v1/completions", json=body) as response:
            assert response.status == 200  # and nothing of it is read
            assert (await gateway.end(signal.SIGTERM))[0] == 0


async def test_tokens_and_certificates_guard_it_and_the_engines_get_theirs(
    tmp_path: Path,
) -> None:
    cert, key = own_certificate(tmp_path)
    options = (f"gateway.tls_cert={cert}", f"gateway.tls_key={key}", "gateway.shadow_ports=true")
    secrets = {
        "STEERSMAN_TOKEN": "for-data",
        "STEERSMAN_ADMIN_TOKEN": "for-control",
        "STEERSMAN_ENGINE_TOKEN": "for-engines",
    }
    async with (
        FakeVllm(api_key="for-engines") as url,
        served("--engines", url, *options, **secrets) as gateway,
    ):
        trust = ssl.create_default_context(cafile=cert)
        shadow = gateway.told["shadows"]["engine-0"]
        for base in (gateway.url, shadow):
            for path, token, expected in (
                ("/v1/models", "", 401),
                ("/v1/models", "for-data", 200),
                ("/is_paused", "for-data", 403),
                ("/is_paused", "for-control", 200),
            ):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                async with gateway.client.get(base + path, headers=headers, ssl=trust) as response:
                    assert response.status == expected
        async with gateway.client.get(f"{shadow}/health", ssl=trust) as response:
            assert response.status == 200
        code, errors = await gateway.end(signal.SIGTERM)
        assert code == 0
        assert not any(secret in errors for secret in secrets.values())


async def test_it_opens_as_many_files_as_the_system_lets_it() -> None:
    script = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))\n{LISTENING}"
    )
    async with FakeVllm() as url, served("--engines", url, script=script) as gateway:
        limits = Path(f"/proc/{gateway.process.pid}/limits").read_text().splitlines()
        (files,) = [line.split() for line in limits if line.startswith("Max open files")]
        assert files[3:5] == ["4096", "4096"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wrong(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What is said of wrong input, and the exit code is 2."""
    try:
        code: object = cli.main(["serve", *argv])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "one of the arguments --engines --ray is required"),
        (["--engines", "http://a", "--ray", "auto"], "not allowed with argument --engines"),
        (["--ray", "auto", "--namespace", "x"], "--ray needs --replicas NAME ... and --namespace"),
        (["--engines", "http://a", "--replicas", "r"], "--replicas and --namespace go with --ray"),
        (["--engines", "localhost:8000"], "'localhost:8000' is no engine URL; valid: http://HOST"),
        (["--engines", "ftp://a"], "'ftp://a' is no engine URL; valid: http://HOST:PORT"),
        (["--engines", "http://a", "http://a/"], "engine URL 'http://a' was given twice"),
        (["--engines", "http://a", "gateway.prt=1"], "did you mean 'gateway.port'"),
        (["--engines", "http://a", "--port", "http"], "gateway.port: Expected int, got str"),
        (["--engines", "http://a", "--config", "none.toml"], "none.toml: No such file"),
        (["--engines", "http://a", "--host", "0.0.0.0"], "0.0.0.0, which other machines reach"),
        (["gateway.token_file=none", "--engines", "http://a"], "none: No such file or directory"),
        (["--engines", "http://a", "gateway.tls_cert=none"], "none: no certificate with its key"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in wrong(capsys, *argv)


def test_engines_that_do_not_answer_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert url in wrong(capsys, "--engines", url)


async def test_a_port_or_a_trace_that_cannot_be_opened_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "file" / "run.jsonl"
    trace.parent.write_text("no folder")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        async with FakeVllm() as url:
            told = await asyncio.to_thread(wrong, capsys, "--engines", url, "--port", port)
            assert f"cannot listen on 127.0.0.1 port {port}: " in told
            options = ("--port", "0", "--trace", str(trace))
            assert str(trace) in await asyncio.to_thread(wrong, capsys, "--engines", url, *options)


async def test_a_warning_tells_of_tokens_sent_in_the_clear() -> None:
    async with FakeVllm() as url:
        for options, secrets, warning in (
            (["--host", "0.0.0.0"], {"STEERSMAN_TOKEN": "t"}, "tokens and prompts go over"),
            (["--host", "0.0.0.0", "--insecure"], {}, "no token is asked for, and prompts go"),
        ):
            async with served("--engines", url, *options, **secrets) as gateway:
                assert socket.gethostname() in gateway.url
                code, errors = await gateway.end(signal.SIGTERM)
            assert code == 0
            assert f"steersman: warning: {warning}" in errors
