"""A gateway as a process beside a trainer, for engines whose addresses only the trainer knows.

Its configuration is that of `steersman serve`: the file that `STEERSMAN_CONFIG` names, and the
environment (`STEERSMAN_PLACEMENT__NAME=tail_planner`).  It ends with the process that started it,
however that ends: its standard input is a pipe from there, whose end it notices.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from steersman.estimators.errors import FleetError

START_S = 120.0
"""For a gateway that imports from a slow disk, and looks at engines that are busy."""
END_S = 40.0
"""For requests under way, when it is told to end."""
LAST_WORDS_S = 5.0
"""For one that has told no address to say why and end."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A gateway that listens."""

    url: str
    engines: dict[str, str]
    """Name -> address."""
    process: "subprocess.Popen[str]"

    def shadow(self, engine_url: str) -> str:
        """The gateway's address of the engine at `engine_url`."""
        for name, url in self.engines.items():
            if url.rstrip("/") == engine_url.rstrip("/"):
                return f"{self.url}/engines/{name}"
        raise FleetError(f"the gateway does not know the engine at {engine_url}")

    def stop(self) -> None:
        """Let requests under way end, then end it."""
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def start_gateway(engines: Sequence[str], *overrides: str) -> Sidecar:
    """Before these engines, on a free port; raises `FleetError` with its own words."""
    command = [sys.executable, "-m", __name__, "--json", "--port", "0"]
    if path := os.environ.get("STEERSMAN_CONFIG"):
        command += ["--config", path]
    command += ["--engines", *engines, *overrides]
    environ = {name: value for name, value in os.environ.items() if name != "STEERSMAN_CONFIG"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    late = threading.Timer(START_S, process.kill)
    late.start()
    line = process.stdout.readline()
    late.cancel()
    try:
        opened: dict[str, Any] = json.loads(line)
    except ValueError:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S)
        Sidecar("", {}, process).stop()
        raise FleetError(
            f"the gateway did not start (exit code {process.returncode}); its error is above"
        ) from None
    return Sidecar(opened["url"], opened["engines"], process)


def _end_with_parent() -> None:
    """Nothing is ever written to the pipe: reading it ends when nobody holds it any more."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    from steersman.controller import cli

    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(cli.main(["serve", *sys.argv[1:]]))
