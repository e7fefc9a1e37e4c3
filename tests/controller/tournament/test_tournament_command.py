"""`steersman tournament`: one table, resumable, and one line for bad input."""

import json
from pathlib import Path

import pytest

from steersman.controller.cli import main
from steersman.controller.tournament.store import FILE

SMALL = ["tournament", "--quick", "--workload", "uniform_short", "--policy", "round_robin"]
FIELDS = {
    "workload", "policy", "correctness", "makespan_ratio", "efficiency",
    "efficiency_vs_clairvoyant", "useful_tokens", "mean_length_ratio", "tick_ms_p99", "seeds",
    "ci95",
}  # fmt: skip


def test_the_table_holds_the_default_and_the_chosen_with_every_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*SMALL, "--json", "--workers", "1", "-o", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in rows] == ["sticky_least_inflight", "round_robin"]
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["seeds"] == 2
        assert 0 < row["efficiency"] <= 1
        assert row["efficiency_vs_clairvoyant"] <= 1.001
        assert row["mean_length_ratio"] == 1.0  # an exact policy gives every answer whole
        assert row["tick_ms_p99"] > 0
    assert rows[0]["makespan_ratio"] == 1.0
    assert rows[0]["useful_tokens"] == rows[1]["useful_tokens"]
    page = (tmp_path / "tournament.html").read_text()
    assert "round_robin" in page
    assert "tier: simulation" in page
    played = (tmp_path / FILE).read_bytes()
    assert main([*SMALL, "--json", "-o", str(tmp_path)]) == 0  # nothing is left to play
    assert json.loads(capsys.readouterr().out)["rows"] == rows
    assert (tmp_path / FILE).read_bytes() == played


def test_a_table_of_samples_is_a_workload_and_its_prompts_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "samples.csv"
    lines = [f"p{i // 8},{50 + 37 * i % 400},{i % 3 // 2}" for i in range(64)]
    table.write_text("\n".join(["prompt_id,length,reward", *lines]))
    arguments = ["--workload", str(table), "--policy", "round_robin", "--policy", "pods"]
    assert main(["tournament", *arguments, "--seeds", "1", "--workers", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["workload"], row["policy"]) for row in rows} == {
        (str(table), "sticky_least_inflight"),
        (str(table), "round_robin"),
        (f"{table}#prompts", "uniform"),
        (f"{table}#prompts", "pods"),
    }
    assert all(row["ci95"] == [None, None] for row in rows)  # one seed has no interval


def test_a_policy_of_ones_own_takes_part_by_its_dotted_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = "steersman.examples.write_your_own_policy"
    arguments = ["--workload", "uniform_short", "--policy", own, "--seeds", "1", "--quick"]
    assert main(["tournament", *arguments, "--workers", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert own in [row["policy"] for row in rows]


def test_a_policy_meets_itself_with_other_options_and_is_not_played_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = "tail_planner,max_moves=0,length.use_siblings=false"
    arguments = [*SMALL[:-1], own, "--seeds", "1", "--workers", "1", "-o", str(tmp_path)]
    assert main(arguments) == 0
    assert "length.use_siblings=false" in capsys.readouterr().out
    assert f"`{own}`" in (tmp_path / "tournament.md").read_text()
    played = (tmp_path / FILE).read_bytes()
    arguments[arguments.index(own)] = "tail_planner, length.use_siblings=false, max_moves=0"
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in rows] == ["sticky_least_inflight", own]
    assert (tmp_path / FILE).read_bytes() == played


def test_a_policy_that_fails_is_reported_and_the_others_are_not_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = "support.broken_policy:Raises"
    arguments = [*SMALL, "--policy", broken, "--seeds", "1", "--workers", "1", "--json"]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    names = [row["policy"] for row in json.loads(captured.out)["rows"]]
    assert names == ["sticky_least_inflight", "round_robin"]
    assert f"{broken} failed on uniform_short, seed 0: ArithmeticError: no idea" in captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "strong_tale"], "did you mean 'strong_tail'?"),
        (["--policy", "tail_seive"], "did you mean 'tail_sieve'?"),
        (["--policy", "tail_sieve,no_such=1"], "unknown option of tail_sieve 'no_such'"),
        (["--policy", "tail_planner,guard.max_defferals=0"], "mean 'guard.max_deferrals'?"),
        (["--policy", "support.broken_policy:Silent"], "`correctness`"),
        (["--seeds", "0"], "seeds is 0; valid: 1 or more"),
        (["--workers", "0"], "workers is 0; valid: 1 or more"),
        (["--profile", "qwen3-8b-h100-tp9"], "did you mean 'qwen3-8b-h100-tp"),
        (["--workload", "missing.csv"], "missing.csv"),
        (["--workload", "draftable", "--policy", "round_robin"], "none of the policies applies"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tournament", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out


def test_the_workloads_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tournament", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 17
    assert any(line.startswith("strong_tail ") and "P90 / P50 = 6" in line for line in lines)
