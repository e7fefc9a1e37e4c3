"""Scenario files and the command line's options for them: what they mean, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.small_replay import PROFILE as SMALL
from support.small_replay import small_workload

from steersman.controller import cli
from steersman.controller.config import load_config
from steersman.controller.replay._sections import ScenarioFile, SpeculationSection
from steersman.controller.replay.events import Happenings, Kind, Update, WeightUpdates
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, replay
from steersman.controller.replay.scenario import Scenario
from steersman.controller.replay.sources import accepted_by_position, weight_times
from steersman.controller.trace import records
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import ReplicaStats
from steersman.mechanisms.simulated.profile import load_profile

FILE = """
[[replicas]]
profile = "qwen3-8b-h100-tp1"
count = 2
[[replicas]]
profile = "qwen3-8b-l40s-tp1"
speed = 0.5
pool = "tail"
[[events]]
kind = "kill"
at_s = 60
replica = "replica-1"
[[events]]
kind = "join"
step = 2
speed = 2.0
[[events]]
kind = "speed"
replica = "replica-3"
speed = 3.0
[[events]]
kind = "acceptance"
acceptance = [0.5, 0.9]
[weights]
update = "drain"
seconds = 3
[speculation]
acceptance = [0.8, 0.7]
verify_s = 0.002
draft_tokens = 1
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text)
    return path


def test_a_file_says_which_fleet_and_what_befalls_it(tmp_path: Path) -> None:
    fleet, happens = Scenario.load(written(tmp_path, FILE)).applied(None, 8)
    assert fleet.described == "3 x qwen3-8b-h100-tp1 + 1 x qwen3-8b-l40s-tp1"
    assert fleet.pool_of == ("bulk", "bulk", "tail", "bulk")
    assert fleet.speed.tolist() == [1.0, 1.0, 0.5, 2.0]
    assert fleet.best_speeds == (1.0, 1.0, 0.5, 3.0)
    assert fleet.best_acceptance == (0.8, 0.9)
    assert (fleet.absent, fleet.acceptance, fleet.draft_tokens) == ((3,), (0.8, 0.7), 1)
    assert fleet.verify_s == 0.002
    assert [(e.kind, e.at_s, e.step, e.replica) for e in happens.events] == [
        (Kind.KILL, 60.0, None, 1),
        (Kind.JOIN, 0.0, 2, 3),
        (Kind.SPEED, 0.0, None, 3),
        (Kind.ACCEPTANCE, 0.0, None, 3),
    ]
    assert happens.weights == WeightUpdates(Update.DRAIN, 3.0)


def test_an_empty_scenario_changes_nothing() -> None:
    fleet, happens = Scenario().applied(SMALL, 2)
    config = load_config(None, ["placement.name=tail_planner"], environ={})
    run = small_workload(steps=2)
    with_it = replay(run, fleet, config, Options(scenario=happens))
    assert with_it.steps == replay(run, FleetPlan(SMALL, 2), config).steps


WRONG = [
    ("[[event]]", "unknown key in FILE: 'event'; did you mean 'events'"),
    ("events = 3", "events is not a list of tables"),
    ("weights = 3", "weights is not a table"),
    ('[[events]]\nkind = "kil"', "did you mean 'kill'"),
    ("[[events]]\nat_s = 3", "missing required field kind"),
    ('[[events]]\nkind = "kill"\nreplca = "x"', "did you mean 'replica'"),
    ('[[events]]\nkind = "kill"', "events[0]: kill needs replica"),
    ('[[events]]\nkind = "kill"\nreplica = "replica-11"', "did you mean 'replica-1'"),
    ('[[events]]\nkind = "kill"\nreplica = "replica-1"\nspeed = 2.0', "kill takes no speed"),
    ('[[events]]\nkind = "join"\nat_s = -1', "events[0].at_s is -1.0; valid: 0 or more"),
    ('[[events]]\nkind = "join"\nspeed = 0.0', "events[0].speed is 0.0; valid: above 0"),
    ('[[events]]\nkind = "join"\npool = "head"', "pool is 'head'; valid: bulk, tail"),
    ('[[events]]\nkind = "join"\nprofile = "qwen3-8b-h1000"', "did you mean"),
    ('[[events]]\nkind = "acceptance"\nacceptance = [0.5]', "1 positions; valid: 0"),
    ('[weights]\nupdate = "abrt"', "did you mean 'abort'"),
    ("[weights]\nseconds = -1", "weights.seconds is -1.0; valid: 0 or more"),
    ('[weights]\nseconds = "x"', "weights: Expected float, got str: .seconds"),
    ("[weights]\nat_s = [3, 1]", "weights.at_s is not an increasing list"),
    ('[weights]\nat_s = "trce"', "weights.at_s is 'trce'; valid: \"trace\""),
    ("[speculation]\nacceptance = [1.5]", "acceptance is 1.5; valid: from 0 to 1"),
    ('[speculation]\nacceptance = "trce"', "speculation.acceptance is 'trce'; valid: \"trace\""),
    ("[speculation]\nverify_s = -1", "verify_s is -1.0; valid: 0 or more"),
    ("[speculation]\ndraft_tokens = 1", "draft_tokens is 1; valid: 0 to 0"),
    ('[[replicas]]\nprofile = "qwen3-8b-h100-tp1"\ncount = 0', "replicas[0].count is 0; valid"),
    ("[weights", "is not TOML"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_scenario_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidInputError) as refused:
        Scenario.load(path).applied(SMALL, 2)
    said = str(refused.value).replace(str(path), "FILE")
    assert message in said
    assert "\n" not in said


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="is for a stream"):
        Options(scenario=Happenings(weights=WeightUpdates(seconds=1.0)))
    with pytest.raises(InvalidInputError, match="valid: one of them"):
        Options(groups_wanted=2, inflight_groups=2, batch_groups=2)


def samples(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"p{i % 6},{length}" for i, length in enumerate(rng.integers(50, 900, 48).tolist())]
    path = folder / "samples.csv"
    path.write_text("\n".join(["prompt_id,length", *rows]))
    return path


MADE_UP = ["--group-size", "4", "--prompts-per-step", "3", "--passes", "1", "--max-num-seqs", "4"]


def test_the_command_takes_a_scenario_and_shows_what_was_thrown_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(samples(tmp_path))
    scenario = str(written(tmp_path, FILE))
    streaming = ["--inflight-groups", "3", "--batch-groups", "1", "--set", "max_lag=0"]
    drained = ["replay", path, "--scenario", scenario, *MADE_UP, *streaming]
    assert cli.main([*drained, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["finished"] == 24
    assert cli.main(drained) == 0
    assert "thrown away" not in capsys.readouterr().out
    kept = FILE.replace('"drain"', '"keep"')
    written(tmp_path, kept)
    assert cli.main(drained) == 0
    assert "tokens thrown away" in capsys.readouterr().out


def test_the_command_forms_steps_of_the_groups_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--profile", "qwen3-8b-h100-tp1", "--replicas", "2", *MADE_UP, "--json"]
    path = str(samples(tmp_path))
    assert cli.main(["replay", path, *arguments, "--groups-wanted", "2"]) == 0
    printed = json.loads(capsys.readouterr().out)["policies"]
    assert [p["finished"] for p in printed] == [24, 24]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no --profile"),
        (["--scenario", "none.toml"], "cannot read scenario none.toml"),
        (["--scenario", "bare.toml"], "bare.toml names no [[replicas]]; give --profile"),
        (["--scenario", "own.toml", "--profile", "qwen3-8b-h100-tp1"], "--profile is for those"),
        (["--scenario", "own.toml"], "is for a stream"),
        (["--scenario", "traced.toml", "--inflight-groups", "2"], "tells no weight updates"),
        (["--profile", "qwen3-8b-h100-tp1", "--groups-wanted", "-1"], "groups_wanted is -1"),
    ],
)
def test_a_command_that_cannot_be_replayed_says_why_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    samples(tmp_path)
    (tmp_path / "bare.toml").write_text("")
    (tmp_path / "own.toml").write_text(FILE)
    traced = FILE.replace("seconds = 3", 'at_s = "trace"')
    (tmp_path / "traced.toml").write_text(traced)
    assert cli.main(["replay", "samples.csv", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def write_pushes(path: Path, begun_s: float, pushed_s: list[float]) -> None:
    """A trace of one request and some weight pushes that took half a second each."""
    trace = TraceWriter(path)
    trace.write(records.RunStarted(t_s=0.0, started_unix_s=0.0, config={}, replicas=[], seed=0))
    request = records.AttemptStarted(
        t_s=begun_s, attempt_id="a", trajectory_id=0, replica="r", prefix_tokens=1, max_tokens=1
    )
    pushes = [
        records.WeightsPushed(t_s=t_s, weight_version=number, seconds=0.5)
        for number, t_s in enumerate(pushed_s, start=1)
    ]
    for record in sorted([request, *pushes], key=lambda record: record.t_s):
        trace.write(record)
    trace.close()


def test_a_trace_tells_which_drafts_were_accepted(tmp_path: Path) -> None:
    """Half of the drafts have two tokens; the second is accepted in 30 of 40 tries."""
    path = tmp_path / "trace.jsonl"
    trace = TraceWriter(path)
    trace.write(records.RunStarted(t_s=0.0, started_unix_s=0.0, config={}, replicas=[], seed=0))
    for replica, t_s, drafted, accepted in (
        ("a", 1.0, [10], [9]),
        ("a", 2.0, [100, 50], [80, 30]),
        ("b", 2.0, [], []),
    ):
        stats = ReplicaStats(drafted_at=drafted, accepted_at=accepted, reported_s=t_s)
        trace.write(records.ReplicaReport(t_s=t_s, replica=replica, alive=True, stats=stats))
    trace.close()
    assert accepted_by_position(path) == pytest.approx((0.8, 0.75))
    said = Scenario(ScenarioFile(speculation=SpeculationSection(acceptance="trace")))
    plan, _ = said.applied(
        load_profile("qwen3-8b-h100-tp1"), 2, trace_acceptance=lambda: accepted_by_position(path)
    )
    assert plan.acceptance == pytest.approx((0.8, 0.75))
    write_pushes(tmp_path / "none.jsonl", begun_s=1.5, pushed_s=[])
    with pytest.raises(InvalidInputError, match="tells of no drafts"):
        accepted_by_position(tmp_path / "none.jsonl")


def test_a_trace_tells_when_its_weights_changed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with pytest.raises(InvalidInputError, match="tells no weight updates"):
        weight_times(tmp_path / "samples.csv")
    write_pushes(path, begun_s=1.5, pushed_s=[1.0, 4.5, 9.5])
    assert weight_times(path) == (2.5, 7.5)
