"""`steersman profile`: lists, shows and fits, and refuses bad input in one line."""

import argparse
import json
from pathlib import Path

import pytest

from steersman.controller.commands import profile as command
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.simulated.profile import load_profile, profile_names

DECODE = "gpu,model,tp,batch,context,step_ms\n" + "".join(
    f"x1,m/small,1,{b},{c},{5 + 0.1 * b + 0.001 * b * c}\n" for b in (1, 8, 64) for c in (128, 1024)
)
PREFILL = "gpu,model,tp,prompt_tokens,prefill_ms\nx1,m/small,1,128,7\nx1,m/small,1,1024,25\n"


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser(prog="steersman profile")
    command.add_arguments(parser)
    return command.run(parser.parse_args(argv))


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    for name, text in (("decode.csv", DECODE), ("prefill.csv", PREFILL)):
        (tmp_path / name).write_text(text)
    return [str(tmp_path / "decode.csv"), str(tmp_path / "prefill.csv")]


def test_list_names_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(profile_names())
    assert run("list", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == len(lines)


def test_show_gives_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    name = profile_names()[0]
    assert run("show", name, "--json") == 0
    assert json.loads(capsys.readouterr().out)["kv_capacity_tokens"] > 0
    assert run("show", name) == 0
    assert "overhead_source" in capsys.readouterr().out


def test_fit_writes_a_profile_that_loads(
    tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "own.json"
    assert run("fit", *tables, "--kv-capacity", "0", "--overhead-ms", "1", "-o", str(out)) == 0
    profile = load_profile(out)
    assert profile.name == "small-x1-tp1"
    assert profile.overhead_s == 1e-3
    assert profile.iteration_s(8.0, 8 * 128.0) == pytest.approx(1e-3 + 6.824e-3, rel=1e-3)
    assert "small-x1-tp1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "x2"], "unknown gpu 'x2'. Valid: x1"),
        (["--tp", "2"], "unknown tp '2'. Valid: 1"),
        ([], "no memory facts of m/small on x1; give its KV cache with --kv-capacity"),
        (["--kv-capacity", "10"], "0 decode rows fit the KV cache"),
        (["--kv-capacity", "-5"], "m/small does not fit on 1 x x1"),
        (["--kv-capacity", "0", "--overhead-ms", "-1"], "overhead_s is -0.001"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    options: list[str], message: str, tables: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        run("fit", *tables, *options, "-o", str(tmp_path / "own.json"))
    assert message in str(caught.value)
    assert not (tmp_path / "own.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has the columns a, b; valid: gpu, model, tp with batch"),
        (DECODE.replace("x1,m/small,1,1,128,", "x1,m/small,1,1,128,-"), "step_ms is not a number"),
        (DECODE.replace(",128,", ",many,"), "context is not a number above 0 in every row"),
        ("", "is not a CSV table"),
        (DECODE, "no prefill rows of m/small on 1 x x1"),
    ],
)
def test_a_bad_table_is_refused(text: str, message: str, tmp_path: Path) -> None:
    table = tmp_path / "bad.csv"
    table.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        run("fit", str(table), "--kv-capacity", "0", "-o", str(tmp_path / "own.json"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give either --model, to launch engines, or --attach"),
        (["--model", "/no/model"], "no model folder /no/model"),
        (["--attach", "replica-0"], "--attach needs the --namespace"),
        (["--model", "/", "-o", "/no/folder/x.json"], "no folder /no/folder to write to"),
    ],
)
def test_live_is_refused_before_anything_starts(argv: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        run("live", "-o", "x.json", *argv)
