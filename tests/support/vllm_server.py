"""A real vLLM server on the CPU, as a process of its own; it is up in about half a minute."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

START_TIMEOUT_S = 240.0
"""Two servers at once on two busy cores have taken 90 s."""
POLL_S = 0.25

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class VllmServer:
    """A server that is being started, or up."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        """Until it answers; raises with its log's end if it died."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"vLLM ended: {self.log.read_text()[-3000:]}")
            try:
                with urlopen(f"{self.url}/health", timeout=5):
                    return
            except (URLError, OSError):
                time.sleep(POLL_S)
        raise RuntimeError(f"vLLM did not start: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """kill -9, with everything it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def start_vllm(
    model: Path,
    log: Path,
    *,
    developer: bool = True,
    scale_out: bool = True,
    arguments: Sequence[str] = (),
) -> VllmServer:
    """Begin to start a server on a free port; `developer`: with the trainer's routes (pause,
    weights); `scale_out`: with `/inference/v1/generate`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
    command += ["--max-num-seqs", "64", "--max-num-batched-tokens", "2048", "--block-size", "32"]
    command += ["--kv-cache-memory-bytes", str(64 << 20), "--disable-uvicorn-access-log"]
    command += ["--enable-scale-out"] if scale_out else []
    environment = os.environ | ENVIRONMENT
    environment["VLLM_SERVER_DEV_MODE"] = "1" if developer else "0"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *arguments],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return VllmServer(f"http://127.0.0.1:{port}", process, log)


@contextmanager
def vllm_servers(
    model: Path, folder: Path, count: int = 1, **options: Any
) -> Iterator[list[VllmServer]]:
    """`count` servers of one model, started together and ended together."""
    servers: list[VllmServer] = []
    try:
        servers += (start_vllm(model, folder / f"vllm-{n}.log", **options) for n in range(count))
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
