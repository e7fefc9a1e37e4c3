"""Ctrl-C ends a tournament at once and cleanly; what was played is kept, and taken up again."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from support.processes import LISTENING, processes_of, wait_until

from steersman.controller.cli import EXIT_INTERRUPTED, main
from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.store import FILE, Store

POLICIES = ("sticky_least_inflight", "round_robin")
SMALL = ["tournament", "--quick", "--workload", "uniform_short", "--policy", POLICIES[1]]
SEEDS = 200
"""More than can be played before the interrupt."""
PATIENCE_S, AT_ONCE_S = 120.0, 5.0
"""Until a first game on a busy machine; for an end."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc"
)


@dataclass(frozen=True)
class Interrupted:
    """A tournament that was interrupted after its first game."""

    folder: Path
    code: int
    out: str
    err: str
    seconds: float
    """Until the last of its processes had ended."""
    left: list[int]
    """Those that had not even then."""
    stored: bytes

    @property
    def played(self) -> set[tuple[str, int]]:
        """Policy and seed."""
        settings = Settings(version("steersman"), quick=True, profile="")
        return {(cell.game.policy, cell.game.seed) for cell in Store(self.folder, settings)}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """As a terminal does it: the whole group of processes is told."""
    folder = tmp_path_factory.mktemp("games")
    arguments = [*SMALL, "--seeds", str(SEEDS), "--workers", "2", "-o", str(folder)]
    with subprocess.Popen(
        [sys.executable, "-c", LISTENING, *arguments],
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        try:
            reached = wait_until(lambda: _games(folder) >= 1 or run.poll() is not None, PATIENCE_S)
            assert reached, "no game ended"
            assert run.poll() is None, run.communicate()
            os.killpg(run.pid, signal.SIGINT)
            began_s = time.monotonic()
            out, err = run.communicate(timeout=PATIENCE_S)
            wait_until(lambda: not processes_of(run.pid), AT_ONCE_S)
            seconds = time.monotonic() - began_s
        finally:
            left = processes_of(run.pid)
            for process in left:
                os.kill(process, signal.SIGKILL)
    stored = (folder / FILE).read_bytes()
    return Interrupted(folder, run.returncode, out, err, seconds, left, stored)


def _games(folder: Path) -> int:
    """Stored whole; the first line holds the settings."""
    path = folder / FILE
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def test_an_interrupt_ends_it_at_once_with_one_line(interrupted: Interrupted) -> None:
    assert interrupted.code == EXIT_INTERRUPTED
    assert interrupted.err.split() == ["steersman:", "interrupted"]
    assert interrupted.out == ""
    assert interrupted.seconds < AT_ONCE_S


def test_no_process_of_an_interrupted_tournament_is_left(interrupted: Interrupted) -> None:
    assert interrupted.left == []


def test_an_interrupted_tournament_goes_on_where_it_stopped(
    interrupted: Interrupted, capsys: pytest.CaptureFixture[str]
) -> None:
    before, played = interrupted.stored, interrupted.played
    assert before.endswith(b"\n")
    assert len(before.splitlines()) == 1 + len(played)  # each stored game can be read
    wanted = {(policy, seed) for policy in POLICIES for seed in range(2)}
    assert 1 <= len(played) < len(POLICIES) * SEEDS
    assert wanted & played
    page = interrupted.folder / "tournament.html"
    assert not page.exists()
    again = [*SMALL, "--seeds", "2", "--workers", "1", "-o", str(interrupted.folder)]
    assert main(again) == 0
    assert "round_robin" in capsys.readouterr().out
    assert page.exists()
    after = (interrupted.folder / FILE).read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == before.count(b"\n") + len(wanted - played)
