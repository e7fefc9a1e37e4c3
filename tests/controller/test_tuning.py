"""`steersman tune`: finds what is better, and believes it only on steps it was not tuned on."""

import argparse
import builtins
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steersman.controller import cli
from steersman.controller.commands import tune as command
from steersman.controller.config import load_config
from steersman.controller.plugins import load, names
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.search import KIND, defaults_of, ranges_of
from steersman.controller.replay.study import Study
from steersman.controller.replay.summary import Interval
from steersman.controller.replay.tuned_file import write_config
from steersman.controller.replay.tuning import Settings, Tuning, replayed_steps, tune
from steersman.controller.replay.turns import Turns
from steersman.controller.replay.verdict import judge
from steersman.controller.replay.workload import Asked, Workload
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.policies.contract import Range

STUBS = "support.tuning_policies"
PROFILE = HardwareProfile(
    name="toy", gpu="none", model="none", tensor_parallel=1, fixed_s=0.02, sequence_s=1e-4,
    token_s=0.0, prefill_token_s=0.0, kv_capacity_tokens=0, max_num_seqs=16,
)  # fmt: skip
SETTINGS = Settings(f"{STUBS}:Throttle", trials=6, held_out=0.5)


def step_of(number: int, lengths: list[int]) -> Asked:
    n = len(lengths)
    return Asked(
        step=number,
        prompt_key=np.arange(n // 2),
        group_row=np.repeat(np.arange(n // 2), 2),
        prompt_tokens=np.full(n, 10),
        length=np.array(lengths),
        max_new_tokens=np.full(n, 1000),
        censored=np.zeros(n, dtype=np.bool_),
        reward=np.full(n, np.nan),
        images=np.zeros(n, dtype=np.int64),
        turns=Turns.single(np.array(lengths)),
    )


def study(tuning: int = 3, held_out: int = 3, late: int = 1, **changes: Any) -> Study:
    """Steps of eight trajectories; those held out are `late` times as long."""
    rng = np.random.default_rng(0)
    steps = [
        step_of(number, (rng.integers(50, 90, 8) * (late if number >= tuning else 1)).tolist())
        for number in range(tuning + held_out)
    ]
    return replace(Study(Workload(steps), FleetPlan(PROFILE, 1), ("tick_s=0.5",)), **changes)


@cache
def found_by(stub: str, settings: Settings = SETTINGS, **changes: Any) -> Tuning:
    turn = "placement.options.turn=3"
    own = study(**{"overrides": ("tick_s=0.5", turn), **changes})
    return tune(own, replace(settings, policy=f"{STUBS}:{stub}"))


def test_a_better_option_is_found_and_holds_on_steps_it_was_not_tuned_on() -> None:
    found = found_by("Throttle")
    assert found.tuned_options["at_once"] > found.default_options["at_once"] == 4
    assert found.trials_s[0] > min(found.trials_s)
    assert found.on_tuning_steps.value == pytest.approx(min(found.trials_s) / found.trials_s[0])
    assert found.verdict.holds
    assert found.tuned.over_defaults.high < 1.0
    assert found.tuned.total_s / found.defaults.total_s == found.tuned.over_defaults.value
    assert found.config.placement.options == {"turn": 3, **found.tuned_options}
    assert found.trainer.policy == "sticky_least_inflight"
    assert found.trainer.over_trainer.value == 1.0


def test_the_same_seed_finds_the_same_and_another_one_tries_others() -> None:
    first, again = found_by("Throttle"), found_by.__wrapped__("Throttle")
    assert first == again
    assert found_by("Throttle", seed=1).trials_s != first.trials_s


def test_held_out_steps_have_no_say_in_the_choice() -> None:
    short, long = found_by("Throttle"), found_by("Throttle", late=9)
    assert long.defaults.total_s > 4 * short.defaults.total_s
    assert long.trials_s == short.trials_s
    assert long.tuned_options == short.tuned_options


def test_censored_lengths_of_the_search_come_from_its_own_steps() -> None:
    """Were the held-out ones in the pool, longer lengths would be drawn if those are longer."""

    def cut(one: Study) -> Study:
        steps = [replace(s, censored=np.arange(8) < 4 * (s.step == 0)) for s in one.workload.steps]
        return replace(one, workload=replace(one.workload, steps=steps))

    short, long = (tune(cut(study(late=late)), SETTINGS) for late in (1, 9))
    assert long.trials_s == short.trials_s


def test_options_that_fail_on_held_out_steps_are_called_over_fit_and_not_used() -> None:
    found = found_by("Betraying")
    assert found.on_tuning_steps.high < 1.0 < found.tuned.over_defaults.low
    assert not found.verdict.holds
    assert "slower than the defaults" in found.verdict.sentence
    assert found.verdict.warnings[0].startswith("over-fit: ")
    assert found.config.placement.options == {"turn": 3, **found.default_options}


def test_a_gain_that_shrinks_on_held_out_steps_is_called_over_fit_but_used() -> None:
    found = found_by("Fading")
    assert found.verdict.holds
    assert found.on_tuning_steps.value < found.tuned.over_defaults.value < 1.0
    assert any(w.startswith("over-fit: ") for w in found.verdict.warnings)
    assert found.config.placement.options["at_once"] == found.tuned_options["at_once"]


@pytest.mark.parametrize(
    ("tuning", "held_out", "steps", "holds", "words"),
    [
        ((0.8, 0.7, 0.9), (0.82, 0.75, 0.9), 8, True, []),
        ((0.8, 0.7, 0.9), (0.82, 0.75, 0.9), 2, True, ["once in 4"]),
        ((0.8, 0.7, 0.9), (0.95, 0.9, 0.99), 8, True, ["over-fit"]),
        ((0.8, 0.7, 0.9), (0.95, 0.9, 1.01), 8, False, ["over-fit"]),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 8, False, []),
    ],
)
def test_tuned_options_are_used_only_if_the_held_out_interval_is_below_one(
    tuning: tuple[float, float, float],
    held_out: tuple[float, float, float],
    steps: int,
    holds: bool,
    words: list[str],
) -> None:
    verdict = judge(Interval(*tuning), Interval(*held_out), steps)
    assert verdict.holds is holds
    assert len(verdict.warnings) == len(words)
    assert all(w in text for w, text in zip(words, verdict.warnings, strict=True))


def test_what_is_set_by_hand_is_not_searched() -> None:
    fixed = ("placement.options.at_once=6", "placement.options.turn=3")
    found = found_by("Throttle", overrides=fixed)
    assert list(found.tuned_options) == ["inert"]
    assert "no trial was faster" in found.verdict.sentence
    assert found.config.placement.options["at_once"] == 6
    with pytest.raises(InvalidInputError, match="fixes every option"):
        found_by("Throttle", overrides=(*fixed, "placement.options.inert=0"))


@pytest.mark.parametrize("stub", ["Throttle", "Betraying"])
def test_the_file_loads_as_what_was_replayed_and_says_where_it_is_from(
    stub: str, tmp_path: Path
) -> None:
    overrides = ("placement.options.turn=3", "guard.max_deferrals=1", "normaliser=none")
    own, settings = study(overrides=overrides), replace(SETTINGS, policy=f"{STUBS}:{stub}")
    found, out = tune(own, settings), tmp_path / "steersman.toml"
    out.write_text("what was there before")
    write_config(out, Path("runs/mine.parquet"), own, settings, found)
    assert load_config(out, environ={}) == found.config
    assert list(tmp_path.iterdir()) == [out]
    text = out.read_text()
    for part in (
        "simulation", "no promise", "mine.parquet", "1 x toy", "6 trials, seed 0",
        "first 3 steps; the last 3 were held out", f"{found.tuned.total_s:.1f} s",
        "tuned options" if found.verdict.holds else "default options",
    ):  # fmt: skip
        assert part in text
    assert ("# Warning: over-fit" in text) is (not found.verdict.holds)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    own, out = study(), tmp_path / "steersman.toml"
    found = tune(own, SETTINGS)
    out.write_text("old")
    wrong = replace(found, config=load_config(None, ["seed=9"], environ={}))
    with pytest.raises(InvalidInputError):
        write_config(out, Path("x.csv"), own, SETTINGS, wrong)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_every_declared_range_holds_the_default_of_a_real_option() -> None:
    declared = [n for n in names("policies.placement") if hasattr(load(KIND, n), "TUNABLE")]
    assert "tail_planner" in declared
    for name in declared:
        part = load_config(None, [f"placement.name={name}"], environ={}).placement
        assert defaults_of(part, ranges_of(part))


@pytest.mark.parametrize("wrong", [(1, 1), (0, float("inf")), (0, 1, True), (2, 1)])
def test_a_range_that_cannot_be_searched_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"low must|starts above 0"):
        Range(*wrong)


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser(prog="steersman tune")
    command.add_arguments(parser)
    return command.run(parser.parse_args(argv))


@pytest.fixture
def table(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    rows = [f"{prompt},{rng.integers(20, 90)}\n" for prompt in range(8) for _ in range(4)]
    path = tmp_path / "samples.csv"
    path.write_text("prompt_id,length\n" + "".join(rows))
    return str(path)


SMALL = (
    "--profile", "qwen3-8b-h100-tp1", "--replicas", "2", "--max-num-seqs", "4", "--trials", "3",
    "--prompts-per-step", "4", "--group-size", "2", "--passes", "3", "--set", "tick_s=0.1",
)  # fmt: skip


def test_the_command_writes_the_file_and_tells_its_progress_apart_from_its_result(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "steersman.toml"
    assert run(table, *SMALL, "-o", str(out), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["tuning_steps"], summary["held_out_steps"]) == (4, 2)
    assert len(summary["trials_s"]) == 3
    assert summary["tier"] == "simulation"
    assert (
        summary["config"]["placement"]["options"] == load_config(out, environ={}).placement.options
    )
    assert run(table, *SMALL, "-o", str(out)) == 0
    told = capsys.readouterr().out
    assert "On the 2 held-out steps" in told
    assert "tier: simulation" in told


def test_progress_is_told_for_every_step_replayed() -> None:
    steps, own = [0], study()
    tune(own, SETTINGS, lambda: steps.append(1))
    assert sum(steps) == replayed_steps(own, SETTINGS) == 6 * 3 + 3 * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "round_robin"], "declares no option to tune (TUNABLE); valid: "),
        (["--policy", "tail_planer"], "did you mean 'tail_planner'?"),
        (["--policy", f"{STUBS}:Misdeclared"], "the default at_once=9 of"),
        (["--set", "placement.name=round_robin"], "give --policy"),
        (["--trials", "1"], "trials is 1; valid: 2 or more"),
        (["--held-out", "1.5"], "held-out is 1.5; valid: between 0 and 1"),
        (["--held-out", "0.1"], "held-out 0.1 of 6 steps is 1; valid: at least 2"),
        (["--steps", "3"], "held-out 0.34 of 3 steps is 1; valid: at least 2"),
        (["--imputations", "0"], "imputations is 0; valid: 1 or more"),
        (
            ["--inflight-groups", "4", "--batch-groups", "2"],
            "a stream (--inflight-groups) has none",
        ),
        (["-o", "steersman.yaml"], "the configuration to write ends in .toml"),
        (["-o", "nowhere/steersman.toml"], "no such folder"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(
    options: list[str],
    message: str,
    table: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "steersman.toml"
    with pytest.raises(InvalidInputError) as caught:
        run(table, *SMALL, "-o", str(out), *options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")
    assert not out.exists()


def test_the_demo_reads_a_written_file_and_refuses_a_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, wrong = tmp_path / "good.toml", tmp_path / "wrong.toml"
    good.write_text('placement.name = "tail_planner"\nplacement.options.backlog = 3\n')
    wrong.write_text("tick = 1\n")
    # the configuration is looked at before the steps, and nothing starts with none
    for file, message in ((good, "--steps is 0"), (wrong, f"unknown key in {wrong}: 'tick'")):
        assert cli.main(["demo", "--config", str(file), "--steps", "0"]) == 2
        assert message in capsys.readouterr().err


def test_without_optuna_one_line_tells_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidInputError, match=r"pip install 'steersman\[tune\]'"):
        tune(study(), SETTINGS)
