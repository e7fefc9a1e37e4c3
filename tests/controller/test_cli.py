"""The command line: quick to answer, one line for what is wrong, the same exit codes everywhere."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.synthetic_trace import SyntheticRun

from steersman.controller import cli
from steersman.controller.commands import trace as trace_command
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import FleetError

HEAVY = ("torch", "ray", "vllm", "polars", "sklearn", "river", "matplotlib", "numpy", "rich")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    writer = TraceWriter(tmp_path / "run.jsonl")
    for record in SyntheticRun(steps=2, groups=2, size=2).records():
        writer.write(record)
    writer.close()
    return tmp_path / "run.jsonl"


def run(*argv: str) -> int:
    """The exit code, however it comes."""
    try:
        return cli.main(argv)
    except SystemExit as exit_:
        return int(exit_.code or 0)


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        "import sys\n"
        "from steersman.controller.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        f"found = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    argv = [command, "--help"] if command else ["--help"]
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: steersman" in done.stdout


@pytest.mark.benchmark
def test_help_answers_in_less_than_0_3_seconds() -> None:
    taken = []
    for _ in range(5):
        started_s = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "steersman.controller.cli", "--help"],
            check=True,
            capture_output=True,
        )
        taken.append(time.perf_counter() - started_s)
    print(f"--help: {statistics.median(taken):.3f} s")  # noqa: T201
    assert min(taken) < 0.3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["polices"], "unknown command 'polices'; did you mean 'policies'? Valid: demo"),
        (["policies", "--jsn"], "unrecognized arguments: --jsn"),
        ([], "the following arguments are required: COMMAND"),
        (["trace"], "the following arguments are required: ACTION"),
        (["trace", "check", "/no/such.jsonl"], "/no/such.jsonl: No such file or directory"),
        (["report", "/no/such.jsonl"], "/no/such.jsonl: No such file or directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("steersman")
    assert message in err


def test_an_error_of_ours_is_one_line_wherever_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise FleetError("no replica answers")

    monkeypatch.setattr(trace_command, "run", fail)
    assert run("trace", "check", "x") == 2
    assert capsys.readouterr().err == "steersman: error: no replica answers\n"


def test_an_interrupt_is_one_line_and_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_command, "run", interrupt)
    assert run("trace", "check", "x") == 130
    assert capsys.readouterr().err == "steersman: interrupted\n"


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(trace_command, "run", fail)
    with pytest.raises(ZeroDivisionError):
        run("trace", "check", "x")


def test_policies_lists_the_parts_with_a_sentence_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("policies", "--json") == 0
    parts = json.loads(capsys.readouterr().out)
    assert {"policies.placement", "estimators.length", "mechanisms"} <= {*parts}
    assert all(line for kind in parts.values() for line in kind.values())
    assert run("policies") == 0
    assert "migrate" in capsys.readouterr().out


def test_a_sound_trace_is_0_and_an_unsound_one_1(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("trace", "check", str(trace)) == 0
    assert "0 problems" in capsys.readouterr().out
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(line for line in lines if '"trajectory_ended"' not in line))
    assert run("trace", "check", "--json", str(trace)) == 1
    assert json.loads(capsys.readouterr().out)["problems"]


def test_a_trace_is_exported_beside_itself(trace: Path) -> None:
    assert run("trace", "export", str(trace)) == 0
    assert (trace.parent / "run" / "decision_taken.parquet").exists()


def test_a_report_is_written_from_traces(trace: Path, tmp_path: Path) -> None:
    assert run("report", str(trace), str(trace), "-o", str(tmp_path / "r.html")) == 0
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
