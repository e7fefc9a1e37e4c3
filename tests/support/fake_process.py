"""`fake_vllm` as a process of its own, to be killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("fake_vllm.py")


class FakeProcess:
    """One server process; comes back on the same port."""

    def __init__(self, **options: Any) -> None:
        self._options = {"port": 0} | options
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> "FakeProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it listens."""
        words = [f"--{name.replace('_', '-')}={value}" for name, value in self._options.items()]
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *words], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the fake engine did not start"
        self._options["port"] = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """kill -9."""
        if self._process is None:
            return
        process, self._process = self._process, None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def hang(self) -> None:
        """Stop it as a machine that swaps itself to death would."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)
