"""Training runs with TRL on the signs task: engines, a gateway process, and runs as processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from support.trl_signs import signs_model
from support.vllm_server import VllmServer, vllm_servers

RUN = Path(__file__).parents[1] / "trainers" / "trl" / "run.py"
EXTENSION = "steersman.mechanisms.ray_vllm.extension.SteersmanExtension"
"""With it, seeded requests do not end an engine on a CPU (`seed_repair`): TRL seeds all its own."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "PYTHONPATH": str(RUN.parents[2]),
}
SERVE = "import sys; from steersman.controller.cli import main; sys.exit(main(sys.argv[1:]))"


@dataclass
class Lab:
    """Two engines with the signs model."""

    model: Path
    engines: list[VllmServer]
    folder: Path
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    @property
    def urls(self) -> list[str]:
        """Of the engines."""
        return [engine.url for engine in self.engines]

    def run(
        self, name: str, arm: str, timeout_s: float, *options: str, urls: Sequence[str] = ()
    ) -> "Run":
        """Begin a training run."""
        out = self.folder / f"{name}.json"
        command = [sys.executable, "-W", "ignore", str(RUN), arm, "--model", str(self.model)]
        command += ["--out", str(out), "--engines", *(urls or self.urls), *options]
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        self.started.append(process)
        return Run(process, out, Path(log.name), time.monotonic() + timeout_s)

    def end(self) -> None:
        """Whatever still runs."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()


@dataclass
class Run:
    """A training run under way."""

    process: subprocess.Popen[Any]
    out: Path
    log: Path
    ends_by_s: float

    def reach(self, line: str) -> None:
        """Until it says so in its log."""
        while line not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < self.ends_by_s, f"{line!r} did not come"
            time.sleep(0.05)

    def result(self, *, fails: bool = False) -> dict[str, Any]:
        """What it told at its end, which must come in time."""
        try:
            code = self.process.wait(max(self.ends_by_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs: {self.log.read_text()[-3000:]}") from None
        assert (code != 0) == fails, self.log.read_text()[-3000:]
        told: dict[str, Any] = json.loads(self.out.read_text())
        return told


@contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """Engines while it is open."""
    model = signs_model(folder / "model")
    arguments = ["--served-model-name", str(model), "--worker-extension-cls", EXTENSION]
    with vllm_servers(model, folder, 2, arguments=arguments) as engines:
        for engine in engines:
            call = Request(
                f"{engine.url}/collective_rpc",
                json.dumps({"method": "steersman_prepare"}).encode(),
                {"Content-Type": "application/json"},
            )
            with urlopen(call, timeout=30) as answer:
                assert json.load(answer) == {"results": [""]}
        made = Lab(model, engines, folder)
        try:
            yield made
        finally:
            made.end()


@contextmanager
def gateway_process(lab: Lab, *overrides: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`steersman serve` over the engines: its URL, and the process to kill."""
    command = [sys.executable, "-c", SERVE, "serve", "--engines", *lab.urls, *overrides]
    process = subprocess.Popen(
        [*command, "--port", "0", "--json"],
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
