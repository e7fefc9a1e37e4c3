"""The simulator's benchmark does the work it measures, and its command says what came out."""

import argparse
import json

import pytest

from steersman.controller.commands import bench
from steersman.mechanisms.simulated import benchmark


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(given)


def test_every_trajectory_of_the_benchmark_is_finished() -> None:
    result = benchmark.run(2000, 3)
    assert result.finished == 2000
    assert result.tokens == benchmark.workload(2000, seed=0).turn_tokens.sum()
    assert result.ticks == pytest.approx(result.makespan_s / benchmark.TICK_S, abs=1)


def test_the_command_prints_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(arguments("simulator", "--trajectories", "1e3", "--replicas", "2")) == 0
    assert "1,000 trajectories on 2 replicas" in capsys.readouterr().out
    bench.run(arguments("simulator", "--trajectories", "1e3", "--replicas", "2", "--json"))
    printed = json.loads(capsys.readouterr().out)
    assert {"seconds", "compile_seconds", "peak_mb"} <= printed.keys()
    assert printed["finished"] == 1000


@pytest.mark.parametrize("text", ["0", "1.5", "many", "nan"])
def test_a_number_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("simulator", "--replicas", text)
    assert f"invalid whole number value: '{text}'" in capsys.readouterr().err
