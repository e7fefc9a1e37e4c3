"""Runs made up from samples, replayed to estimators, and scored."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.length_world import make_world
from support.synthetic_trace import SyntheticRun

from steersman.controller import cli
from steersman.controller.calibration.replay import TICKS, StepWorld
from steersman.controller.calibration.scores import LengthScores
from steersman.controller.calibration.steps import Plan, Samples, made_up_steps
from steersman.controller.calibration.tables import NO_CAP, samples_from_csv
from steersman.controller.calibration.traces import steps_from_trace
from steersman.controller.trace.records import TrajectoryEnded
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import LengthForecast
from steersman.estimators.lifecycle import Phase


def samples(prompts: int, each: int, seed: int = 0) -> Samples:
    """`each` samples of every prompt; all lengths differ."""
    n = prompts * each
    length = np.random.default_rng(seed).permutation(n) + 10
    return Samples(
        prompt=[f"p{i // each}" for i in range(n)],
        length=length,
        truncated=np.zeros(n, dtype=np.bool_),
        max_new_tokens=np.full(n, NO_CAP),
        reward=(length % 2).astype(np.float64),
        turns=np.ones(n, dtype=np.int64),
    )


def test_every_pass_visits_every_prompt_once() -> None:
    steps = made_up_steps(samples(70, 8), Plan(group_size=4, prompts_per_step=32, passes=2))
    assert [len(step.prompt_key) for step in steps] == [32, 32, 6] * 2
    for one_pass in (steps[:3], steps[3:]):
        keys = np.concatenate([step.prompt_key for step in one_pass])
        assert len(set(keys.tolist())) == 70


def test_no_sample_is_used_twice_before_all_were() -> None:
    steps = made_up_steps(samples(5, 8), Plan(group_size=4, prompts_per_step=5, passes=4))
    first = Counter(np.concatenate([step.length for step in steps[:2]]).tolist())
    whole = Counter(np.concatenate([step.length for step in steps]).tolist())
    assert set(first.values()) == {1}
    assert len(first) == 40
    assert set(whole.values()) == {2}


def test_a_prompt_with_few_samples_gives_a_small_group() -> None:
    steps = made_up_steps(samples(4, 3), Plan(group_size=8, prompts_per_step=4, passes=2))
    assert all(len(step.length) == 12 for step in steps)


def test_the_same_seed_makes_the_same_run_and_another_one_another() -> None:
    first, again, other = (
        made_up_steps(samples(9, 8), Plan(prompts_per_step=3, seed=seed)) for seed in (1, 1, 2)
    )
    assert all((a.length == b.length).all() for a, b in zip(first, again, strict=True))
    assert any((a.length != b.length).any() for a, b in zip(first, other, strict=True))


@given(seed=st.integers(0, 10_000), concurrency=st.integers(1, 40))
@settings(deadline=None, max_examples=40)
def test_a_replayed_step_shows_every_trajectory_until_it_ended_once(
    seed: int, concurrency: int
) -> None:
    plan = Plan(group_size=4, prompts_per_step=6, passes=1, concurrency=concurrency, seed=seed)
    (step,) = made_up_steps(samples(6, 4, seed), plan)
    world, ended, written = StepWorld(step, 0, 100), [], np.zeros(24, dtype=np.int64)
    for tick in range(TICKS + 1):
        seen = world.observe(tick)
        t, e = seen.trajectories, seen.ended
        assert (t.phase == Phase.RUNNING).sum() <= concurrency
        assert (t.generated_tokens >= written[t.trajectory_id - 100]).all()
        written[t.trajectory_id - 100] = t.generated_tokens
        assert (e.generated_tokens == step.length[e.trajectory_id - 100]).all()
        ended += e.trajectory_id.tolist()
    assert sorted(ended) == list(range(100, 124))
    assert len(seen.trajectories) == len(seen.groups) == 0


def test_an_aborted_trajectory_ends_at_its_cut_as_a_lower_bound() -> None:
    step = make_world("mix", True, 2, seed=0, groups=8).steps[1]
    world, cut = StepWorld(step, 0, 0), step.cut_at < step.length
    for tick in range(TICKS + 1):
        e = world.observe(tick).ended
        rows = e.trajectory_id
        assert (e.censored == (cut | step.truncated)[rows]).all()
        assert (e.generated_tokens == np.minimum(step.cut_at, step.length)[rows]).all()
    assert cut.any()


def test_the_steps_of_a_trace_are_its_own(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "run.jsonl")
    run = list(SyntheticRun(steps=3, groups=4, size=5).records())
    for record in run:
        trace.write(record)
    trace.close()
    steps = steps_from_trace(tmp_path / "run.jsonl")
    ended = [r for r in run if isinstance(r, TrajectoryEnded)]
    assert [len(step.length) for step in steps] == [20, 20, 20]
    assert sum(int(s.length.sum()) for s in steps) == sum(r.generated_tokens for r in ended)
    assert sum(int(s.truncated.sum()) for s in steps) == sum(
        r.disposition == "truncated" for r in ended
    )
    assert all(step.scored.all() and np.isfinite(step.reward).all() for step in steps)
    # what was carried over runs beside a step's own
    assert all(1 <= step.concurrency <= 40 for step in steps)


def scored(forecast: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    scores = LengthScores()
    scores.add(LengthForecast(forecast, forecast[:, 1], forecast, np.zeros(len(truth))), truth)
    return scores.result()


def test_a_perfect_forecast_scores_perfectly() -> None:
    truth = np.arange(1.0, 101.0)
    result = scored(np.repeat(truth[:, None], 3, axis=1), truth)
    assert result == {
        "q90_coverage": 1.0,
        "q10_q90_coverage": 1.0,
        "pinball": 0.0,
        "kendall_tau": pytest.approx(1.0),
        "tail_recall": 1.0,
    }


def test_the_pinball_loss_is_the_books() -> None:
    """max(q e, (q - 1) e) for e = truth - forecast, averaged over the three quantiles."""
    result = scored(np.array([[0.0, 10.0, 20.0]]), np.array([14.0]))
    assert result["pinball"] == pytest.approx((0.1 * 14 + 0.5 * 4 + 0.1 * 6) / 3)
    assert result["q90_coverage"] == 1.0


def test_what_has_ended_is_not_scored() -> None:
    result = scored(np.ones((2, 3)), np.array([1.0, np.nan]))
    assert result["q90_coverage"] == 1.0


TABLE = """source,prompt_id,sample_idx,length,reward,truncated,max_tokens,task
a,p,0,100,1,0,2048,x
a,p,1,2047,0,1,2048,x
a,q,0,50,0.5,0,2048,x
b,p,0,900,,1,,x
b,p,1,300,1,1,,x
"""


def written(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_table_is_read_with_its_caps(tmp_path: Path) -> None:
    read = samples_from_csv(written(tmp_path, TABLE))
    assert read.prompt == ["a/p", "a/p", "a/q", "b/p", "b/p"]
    assert read.length.tolist() == [100, 2048, 50, 900, 300]
    assert read.max_new_tokens.tolist() == [2048, 2048, 2048, 900, 900]
    assert read.truncated.tolist() == [False, True, False, True, False]
    np.testing.assert_array_equal(read.reward, [1, 0, 0.5, np.nan, 1])


def test_a_zipped_table_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(TABLE.encode()))
    assert samples_from_csv(path).length.tolist() == [100, 2048, 50, 900, 300]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt_id,size\np,3\n", "no column 'length'; it has prompt_id, size"),
        ("prompt_id,length\np,3\nq,many\n", "line 3: length is 'many'; valid: a number"),
        ("prompt_id,length\n", "holds no samples"),
        ("prompt_id,length\np,-5\n", "line 2: length is -5; valid: a number, 0 or more"),
        ("prompt_id,length\np,3\np,inf\n", "line 3: length is inf; valid: a number, 0 or more"),
        ("prompt_id,length,reward\np,3,nan\n", "line 2: reward is .?nan.?; valid: a number"),
        ("prompt_id,length\np,\n", "line 2: length is None; valid: a number"),
    ],
)
def test_a_bad_table_is_refused_by_column_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        samples_from_csv(written(tmp_path, text))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv"], "missing.csv: no such file"),
        (["table.txt"], "is neither a trace"),
        (["table.csv", "--passes", "0"], "passes is 0; valid: 1 or more"),
        (["run.jsonl", "--group-size", "4"], "--group-size is for tables"),
        (["table.csv", "--length", "lenght"], "did you mean 'length'"),
    ],
)
def test_bad_input_to_calibrate_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, TABLE)
    written(tmp_path, "x", "table.txt")
    assert cli.main(["calibrate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_calibrate_prints_one_object_with_all_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = ["prompt_id,length,reward"]
    for prompt in range(12):
        centre = rng.normal(6.0, 0.6)
        lengths = np.exp(rng.normal(centre, 0.4, 12)).astype(int) + 1
        rows += [f"p{prompt},{length},{prompt % 2}" for length in lengths]
    path = written(tmp_path, "\n".join(rows))
    arguments = ["--group-size", "4", "--prompts-per-step", "6", "--passes", "3", "--json"]
    assert cli.main(["calibrate", str(path), *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    names = {"q90_coverage", "q10_q90_coverage", "pinball", "kendall_tau", "tail_recall"}
    assert {*printed["length"]} == {*names, "baselines"}
    assert {"global", "prompt_history", "siblings", "gradient_boosting"} <= {
        *printed["length"]["baselines"]
    }
    assert all({*scores} == names for scores in printed["length"]["baselines"].values())
    assert {*printed["success"]} == {"brier", "degenerate_auc", "ece", "baselines"}
    assert printed["work"]["trajectories"] == 6 * 4 * 6
