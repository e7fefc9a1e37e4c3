"""A log that cannot be read is named to the line, and leaves nothing half done."""

import json
import pickle
from pathlib import Path

import msgspec
import pytest
from support.imports import FIXTURES, TOKENIZER, imported

from steersman.controller.commands import import_run as command
from steersman.controller.importers import formats
from steersman.controller.runs.log import EXAMPLES, BadRecordError
from steersman.estimators.errors import InvalidInputError, UnknownNameError

GOOD = {"input": "a b", "output": "c d e", "score": 1.0, "step": 1, "gts": None}


def run(*argv: str) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(argv))


def dump(folder: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "1.jsonl").write_text("\n".join(texts) + "\n")
    return folder / "1.jsonl"


@pytest.fixture
def verl() -> dict[str, object]:
    pytest.importorskip("tokenizers")
    return {"tokenizer": TOKENIZER}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{ not json", "malformed"),
        ({**GOOD, "score": "good"}, "score"),
        ({**GOOD, "output": 3}, "output"),
        ({k: v for k, v in GOOD.items() if k != "step"}, "step"),
        ("[1, 2]", "object"),
    ],
)
def test_a_bad_record_is_named_by_file_and_line(
    line: object, why: str, tmp_path: Path, verl: dict[str, object]
) -> None:
    path = dump(tmp_path, GOOD, line, GOOD)
    with pytest.raises(BadRecordError, match=why) as caught:
        imported("verl", path, tmp_path, verl)
    assert f"{path}, line 2: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["1.jsonl"]


def test_skipped_records_are_counted_and_the_first_are_named(
    tmp_path: Path, verl: dict[str, object]
) -> None:
    path = dump(tmp_path, GOOD, *["{"] * (EXAMPLES + 2), GOOD)
    frame, info = imported("verl", path, tmp_path, verl, skip_bad=True)
    assert len(frame) == 2
    assert info.skipped == EXAMPLES + 2
    assert [f"line {2 + i}:" in text for i, text in enumerate(info.skipped_examples)] == (
        [True] * EXAMPLES
    )


def test_a_failed_import_leaves_the_older_table_as_it_was(
    tmp_path: Path, verl: dict[str, object]
) -> None:
    (tmp_path / "run.parquet").write_bytes(b"older")
    with pytest.raises(BadRecordError):
        imported("verl", dump(tmp_path, GOOD, "{"), tmp_path, verl)
    assert (tmp_path / "run.parquet").read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.jsonl", "run.parquet"]


def test_pythons_nan_is_no_bad_record_but_no_reward_either(
    tmp_path: Path, verl: dict[str, object]
) -> None:
    path = dump(tmp_path, GOOD, json.dumps({**GOOD, "score": float("nan")}))
    frame, info = imported("verl", path, tmp_path, verl)
    assert frame["reward"].to_list() == [1.0, None]
    assert any("not finite" in sentence for sentence in info.assumed)


def test_an_unknown_format_is_answered_with_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'prime-rl'") as caught:
        run("prime-lr", "x", "-o", str(tmp_path / "run.parquet"))
    assert all(name in str(caught.value) for name in formats())


@pytest.mark.parametrize("format", ["verl", "trl", "roll"])
def test_text_only_logs_ask_for_a_tokenizer(format: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--tokenizer DIR"):
        run(format, str(FIXTURES / format), "-o", str(tmp_path / "run.parquet"))


def test_an_option_that_means_nothing_for_a_format_is_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "run.parquet")
    with pytest.raises(InvalidInputError, match="--tokenizer means nothing for areal"):
        run("areal", str(FIXTURES / "areal"), "-o", out, "--tokenizer", TOKENIZER)
    with pytest.raises(InvalidInputError, match="--trust-pickle means nothing for areal"):
        run("areal", str(FIXTURES / "areal"), "-o", out, "--trust-pickle")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"holds no tokenizer\.json"):
        imported("verl", "verl", tmp_path, {"tokenizer": str(tmp_path)})


@pytest.mark.parametrize("format", formats())
def test_a_path_without_the_formats_files_is_answered_in_one_line(
    format: str, tmp_path: Path
) -> None:
    options = {"tokenizer": TOKENIZER} if format in ("verl", "trl", "roll") else {}
    for path, why in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "holds no")):
        with pytest.raises(InvalidInputError, match=why) as caught:
            imported(format, path, tmp_path, options)
        assert "\n" not in str(caught.value)


class _Trap:
    """Unpickling it leaves a file."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path(self.mark),))  # type: ignore[return-value]

    def __init__(self, mark: str) -> None:
        self.mark = mark


def test_a_pickle_is_not_opened_unless_its_writer_is_trusted(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "3.pt").write_bytes(pickle.dumps(_Trap(str(mark))))
    with pytest.raises(InvalidInputError, match="--trust-pickle"):
        imported("slime", tmp_path, tmp_path)
    assert not mark.exists()


def test_a_target_that_cannot_be_written_is_named_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.parquet").mkdir()
    with pytest.raises(InvalidInputError, match="it is a folder"):
        imported("areal", "areal", tmp_path)
    with pytest.raises(InvalidInputError, match="cannot write"):
        imported("areal", "areal", tmp_path / "nowhere")


def test_the_json_summary_is_the_tables_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.parquet"
    assert run("areal", str(FIXTURES / "areal"), "-o", str(out), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    _, info = imported("areal", "areal", tmp_path)
    assert summary == {"out": str(out), **msgspec.to_builtins(info)}


def test_the_spoken_summary_tells_what_is_missing_and_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("areal", str(FIXTURES / "areal"), "-o", str(tmp_path / "run.parquet")) == 0
    told = capsys.readouterr().out
    assert "3 trajectories from 3 files" in told
    assert "missing: step, max_new_tokens, truncated, replica" in told
    assert "assumed: the i-th sample" in told


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"step": -1}, "step is -1"),
        ({"step": 2**63}, "step is 9223372036854775808"),
    ],
)
def test_a_count_that_cannot_be_is_refused(
    change: dict[str, object], why: str, tmp_path: Path, verl: dict[str, object]
) -> None:
    path = dump(tmp_path, GOOD, {**GOOD, **change})
    with pytest.raises(BadRecordError, match=f"trajectory 1: {why}"):
        imported("verl", path, tmp_path, verl)


def test_an_end_before_the_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("length,started_s,ended_s\n5,2.0,1.0\n")
    with pytest.raises(BadRecordError, match="ended before it started"):
        imported("csv", tmp_path, tmp_path)
