"""`steersman regret`: a short run from end to end, and one line for bad input."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import LISTENING, processes_of, wait_until

from steersman.controller.cli import EXIT_INTERRUPTED, main

DEFAULT = "sticky_least_inflight"
JUDGED = "tail_planner,max_moves=0"
BROKEN = "support.broken_policy:Raises"
PATIENCE_S = 60.0
"""Until workers are there, on a busy machine."""
SMALL = ["regret", "--workload", "changing", "--steps", "6", "--seeds", "1", "--workers", "1"]


def test_six_steps_are_played_compared_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = ["--policy", JUDGED, "--policy", "seer", "--policy", BROKEN]
    assert main([*SMALL, *policies, "--json", "-o", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert f"steersman: {BROKEN} failed on changing, seed 0: ArithmeticError: no idea" in told.err
    (one,) = json.loads(told.out)["workloads"]
    assert json.loads((tmp_path / "out" / "regret.json").read_text()) == json.loads(told.out)
    assert (one["judged"], one["steps"], one["seeds"]) == (JUDGED, 6, [0])
    assert [line["entry"] for line in one["lines"]] == [JUDGED, DEFAULT, "seer"]
    seconds = {line["entry"]: line["step_s"][0] for line in one["lines"]}
    assert all(len(row) == 6 and min(row) > 0 for row in seconds.values())
    best = min((DEFAULT, "seer"), key=lambda name: sum(seconds[name]))
    assert one["best"] == one["against_best"]["against"] == best
    for which, other in (("against_best", best), ("against_default", DEFAULT)):
        total_s = sum(seconds[JUDGED]) - sum(seconds[other])
        assert one[which]["total_s"] == pytest.approx(total_s, abs=1e-4)
        assert len(one[which]["cumulative_s"]) == 6
    assert [change["step"] for change in one["changes"]] == [0, 2, 4]
    # the same trajectories for all: every answer is given, by every entry
    assert len({line["answers"] for line in one["lines"]}) == 1
    assert all(json.loads(told.out)["checklist"].values())
    assert "Cumulative regret" in (tmp_path / "out" / "regret.html").read_text()


def test_the_long_runs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["regret", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "steady_tail", "steady_waves", "steady_agents", "changing",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no policy to judge; valid: --policy ENTRY"),
        (["--policy", "tail_planer"], "did you mean 'tail_planner'?"),
        (["--policy", "tail_planner,max_mvoes=1"], "did you mean 'max_moves'?"),
        (["--policy", "espo"], "espo is a stopping policy; valid: placement policies"),
        (["--policy", "april"], "april asks for more groups than a step has"),
        (["--policy", DEFAULT, "--policy", "seer"], "valid: another one first"),
        (["--policy", "seer", "--workload", "steady_tial"], "did you mean 'steady_tail'?"),
        (["--policy", "seer", "--workload", "async_lag"], "unknown workload 'async_lag'"),
        (["--policy", "seer", "--steps", "2"], "steps is 2; valid: 3 or more"),
        (["--policy", "seer", "--seeds", "0"], "seeds is 0; valid: 1 or more"),
        (["--policy", "seer", "--workers", "0"], "workers is 0; valid: 1 or more"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["regret", *arguments]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.splitlines()) == 1
    assert not told.out


def test_a_folder_that_cannot_be_is_said_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([*SMALL, "--policy", "seer", "-o", str(tmp_path / "file" / "out")]) == 2
    assert "cannot write to" in capsys.readouterr().err


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc"
)
def test_an_interrupt_ends_it_with_one_line_and_leaves_no_process() -> None:
    """As a terminal does it: the whole group of processes is told."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENING, "regret", "--policy", "seer", "--workers", "2"],
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        try:
            assert wait_until(lambda: len(processes_of(run.pid)) > 2, PATIENCE_S)
            os.killpg(run.pid, signal.SIGINT)
            out, err = run.communicate(timeout=PATIENCE_S)
            ended = wait_until(lambda: not processes_of(run.pid), PATIENCE_S)
        finally:
            for process in processes_of(run.pid):
                os.kill(process, signal.SIGKILL)
    assert (run.returncode, out, err) == (EXIT_INTERRUPTED, "", "steersman: interrupted\n")
    assert ended
