"""A profile is scaled to a run: by the run's own factor, found on every other step alone."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.small_replay import PROFILE, small_workload
from support.synthetic_trace import SyntheticRun

from steersman.controller.calibration.steps import Plan
from steersman.controller.cli import main
from steersman.controller.config import Config, load_config
from steersman.controller.replay.adapting import Adapted, adapt, scaled
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import replay
from steersman.controller.replay.sources import load_workload
from steersman.controller.replay.workload import Workload
from steersman.controller.trace import records as rec
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.observation import Floats
from steersman.mechanisms.simulated.profile import load_profile, save_profile

NAME, TICK_S = "sticky_least_inflight", 2.0  # ticks are what the tests' time goes into
STICKY = load_config(None, [f"placement.name={NAME}", f"tick_s={TICK_S}"], environ={})
FEW = {"name": "adaptive_concurrency", "options": {"max_inflight": 2, "defer_youngest": True}}
RUN = list(SyntheticRun(policy=NAME, steer=False, steps=5, groups=3, size=4).records())
DRAINED = list(SyntheticRun(steps=5, groups=3, size=4).records())
"""Its last trajectories are deferred, and a step without groups of its own lets them end."""


def seconds_of(workload: Workload, slower: float, config: Config = STICKY) -> Floats:
    """(s,) seconds of each step where every iteration takes `slower` times the profile's."""
    plan = FleetPlan(PROFILE.slowed(slower), 2)
    steps = replay(workload, plan, config).steps[: len(workload.steps)]
    return np.array([step.makespan_s for step in steps])


def written(path: Path, told: Iterable[rec.Record]) -> Path:
    writer = TraceWriter(path)
    for record in told:
        writer.write(record)
    writer.close()
    return path


def with_start(told: Iterable[rec.Record], **changed: Any) -> list[rec.Record]:
    """The run begun otherwise."""
    return [
        msgspec.structs.replace(r, **changed) if isinstance(r, rec.RunStarted) else r for r in told
    ]


TICKED = with_start(RUN, config=msgspec.to_builtins(STICKY))
"""With the whole configuration, as a session writes it."""


def timed(told: Iterable[rec.Record], seconds: Callable[[int], float]) -> list[rec.Record]:
    """The run, its steps having taken other times."""
    return [
        msgspec.structs.replace(r, seconds=seconds(r.step)) if isinstance(r, rec.StepEnded) else r
        for r in told
    ]


def slow_run(folder: Path, told: list[rec.Record], slower: float, config: Config = STICKY) -> Path:
    """A trace whose steps took as long as on machines `slower` times as slow as the profile's."""
    workload = load_workload(written(folder / "lengths.jsonl", told), Plan())
    took_s = seconds_of(workload, slower, config)
    by_step = {asked.step: s for asked, s in zip(workload.steps, took_s.tolist(), strict=True)}
    drained_s = 1e6  # no step of the workload's: it must not count
    return written(folder / "run.jsonl", timed(told, lambda step: by_step.get(step, drained_s)))


def of(slower: float | Floats, steps: int = 6) -> Adapted:
    """Of a run on slower machines, or with each step so many times as long as replayed."""
    workload = small_workload(steps=steps, groups=3)
    if isinstance(slower, float):
        took_s = seconds_of(workload, slower)
    else:
        took_s = seconds_of(workload, 1.0) * slower
    return scaled(workload, took_s, FleetPlan(PROFILE, 2), STICKY)


# Steps and their seconds


@pytest.mark.parametrize("slower", [0.25, 1.0, 1.7, 6.0])
def test_a_run_on_slower_machines_gives_back_how_much_slower(slower: float) -> None:
    found = of(slower)
    assert found.factor == pytest.approx(slower, rel=0.01)
    assert found.error_median < 0.01
    assert (found.fitted_steps, found.held_out_steps) == (3, 3)
    assert found.profile.fixed_s == pytest.approx(found.factor * PROFILE.fixed_s)
    assert found.profile.prefill_token_s == pytest.approx(found.factor * PROFILE.prefill_token_s)
    assert found.profile.kv_capacity_tokens == PROFILE.kv_capacity_tokens


def test_a_replays_fixed_latencies_are_made_up_for_by_the_factor() -> None:
    """Twice the seconds in all: what is not the profile's stays, so that its times more than
    double."""
    found = of(np.full(6, 2.0))
    assert 2.01 < found.factor < 2.06
    assert 0.0 < found.error_median < 0.03


def test_the_steps_between_are_not_fitted_and_show_in_the_error() -> None:
    found = of(np.array([1.0, 2.0] * 3))
    assert found.factor == pytest.approx(1.0, rel=0.01)
    assert found.error_median == pytest.approx(0.5, abs=0.01)


def test_one_odd_step_does_not_change_the_factor() -> None:
    assert of(np.array([9.0, 1, 1, 1, 1, 1])).factor == pytest.approx(1.0, rel=0.01)


def test_one_step_leaves_none_to_try_it_on() -> None:
    found = of(3.0, steps=1)
    assert found.factor == pytest.approx(3.0, rel=0.01)
    assert (found.fitted_steps, found.held_out_steps) == (1, 0)
    assert math.isnan(found.error_median)


# Traces


def test_a_trace_tells_its_steps_and_their_seconds(tmp_path: Path) -> None:
    found = adapt(slow_run(tmp_path, TICKED, 2.5), PROFILE)
    assert found.factor == pytest.approx(2.5, rel=0.01)
    assert found.error_median < 0.01
    assert (found.fitted_steps, found.held_out_steps) == (3, 2)


@pytest.mark.parametrize("at_end", [True, False])
def test_a_step_that_only_drains_is_left_out_wherever_it_is(at_end: bool, tmp_path: Path) -> None:
    """In the middle, as a session's `drain` between two rollouts leaves it: numbers have a gap."""
    told = DRAINED if at_end else [moved_on(record) for record in DRAINED]
    if not at_end:
        drain = rec.StepEnded(t_s=0.5, step=2, seconds=0.5, tokens=0, groups=0)
        told.insert(next(i for i, r in enumerate(told) if getattr(r, "step", 0) == 3), drain)
    config = load_config(None, ["placement.name=tail_planner", f"tick_s={TICK_S}"], environ={})
    run = slow_run(tmp_path, with_start(told, config=msgspec.to_builtins(config)), 2.0, config)
    found = adapt(run, PROFILE)
    assert found.factor == pytest.approx(2.0, rel=0.01)
    assert found.fitted_steps + found.held_out_steps == 5


def moved_on(record: rec.Record) -> rec.Record:
    """Steps 2, 3, .. become 3, 4, .."""
    if isinstance(record, rec.StepStarted | rec.StepEnded | rec.GroupAdmitted) and record.step >= 2:
        return msgspec.structs.replace(record, step=record.step + 1)
    return record


@pytest.mark.parametrize(
    "configured",
    [
        {"placement": FEW},
        {"mode": "shadow", "placement": {"name": "round_robin"}, "fallback": FEW},
        {"mode": "off", "placement": {"name": "round_robin"}, "fallback": FEW},
    ],
)
def test_the_policy_that_acted_is_replayed_with_its_options(
    configured: dict[str, Any], tmp_path: Path
) -> None:
    few = msgspec.convert({"placement": FEW, "tick_s": TICK_S}, Config)
    told = with_start(RUN, config={**configured, "tick_s": TICK_S})
    run = slow_run(tmp_path, told, 2.0, few)
    assert adapt(run, PROFILE).factor == pytest.approx(2.0, rel=0.01)


# The command


def test_the_command_writes_a_profile_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_profile(PROFILE, tmp_path / "small.json")
    run, out = slow_run(tmp_path, TICKED, 2.5), tmp_path / "own.json"
    arguments = [str(run), "--profile", str(tmp_path / "small.json"), "-o", str(out)]
    assert main(["profile", "adapt", *arguments]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{out}: times x 2.5")
    assert "from 3 steps; median error 0." in said
    assert load_profile(out).fixed_s == pytest.approx(2.5 * PROFILE.fixed_s, rel=0.01)
    assert main(["profile", "adapt", *arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["factor"] == pytest.approx(2.5, rel=0.01)
    assert (told["fitted_steps"], told["held_out_steps"]) == (3, 2)
    assert told["error_median"] < 0.01
    assert told["profile"]["fixed_s"] == load_profile(out).fixed_s


def test_the_error_of_one_step_is_null_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_profile(PROFILE, tmp_path / "small.json")
    one = list(SyntheticRun(policy=NAME, steer=False, steps=1, groups=3, size=4).records())
    run = written(tmp_path / "run.jsonl", one)
    arguments = [
        "profile", "adapt", str(run), "--profile", str(tmp_path / "small.json"),
        "-o", str(tmp_path / "own.json"),
    ]  # fmt: skip
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error_median"] is None
    assert main(arguments) == 0
    assert "from 1 steps; no other step to try it on" in capsys.readouterr().out


def without(*kinds: type) -> list[rec.Record]:
    return [record for record in RUN if not isinstance(record, kinds)]


LAST_ENDED = max(i for i, r in enumerate(RUN) if isinstance(r, rec.StepEnded) and r.step == 4)
STREAMED = [
    msgspec.structs.replace(r, objective="stream") if isinstance(r, rec.StepStarted) else r
    for r in RUN
]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (without(rec.StepEnded), "tells the seconds of 0 of 5 steps; valid: a trace of steps that"),
        (RUN[:LAST_ENDED], "tells the seconds of 4 of 5 steps"),
        (timed(RUN, lambda step: 0.0), "tells the seconds of 0 of 5 steps"),
        (STREAMED, "has steps that are streams; valid: steps with a barrier"),
        (RUN[:1], "run.jsonl"),
        ([], "run.jsonl"),
        (with_start(RUN, replicas=[]), "replicas is 0; valid: 1 or more"),
        (with_start(RUN, config={"placement": {"name": "stiky"}}), "unknown placement"),
        (with_start(RUN, config={"tick": 1}), "its configuration is not valid here: Object"),
    ],
)
def test_a_trace_that_cannot_be_told_from_is_one_line_and_nothing_is_written(
    told: list[rec.Record], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = written(tmp_path / "run.jsonl", told), tmp_path / "own.json"
    refused(["profile", "adapt", str(run), "--profile", SHIPPED, "-o", str(out)], message, capsys)
    assert not out.exists()


SHIPPED = "qwen3-8b-h100-tp1"


@pytest.mark.parametrize(
    ("name", "profile", "message"),
    [
        ("run.parquet", SHIPPED, "only a trace (.jsonl) tells how long its steps took"),
        ("missing.jsonl", SHIPPED, "missing.jsonl: no such file"),
        ("run.jsonl", "qwen3-8b-h100-tp9", "did you mean 'qwen3-8b-h100-tp"),
        ("run.jsonl", "missing.json", "cannot read profile missing.json"),
    ],
)
def test_a_wrong_name_is_one_line_and_nothing_is_written(
    name: str, profile: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "run.jsonl", RUN)
    (tmp_path / "run.parquet").touch()
    out = tmp_path / "own.json"
    arguments = [str(tmp_path / name), "--profile", profile, "-o", str(out)]
    refused(["profile", "adapt", *arguments], message, capsys)
    assert not out.exists()


def refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out
