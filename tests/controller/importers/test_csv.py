"""Any table of samples, requests or turns is a run, as far as it goes."""

import gzip
from pathlib import Path

import pytest
from support.imports import imported
from support.real_data import real_data

from steersman.controller.calibration.tables import samples_from_csv
from steersman.controller.runs.log import BadRecordError
from steersman.estimators.errors import InvalidInputError


def csv(folder: Path, *lines: str) -> Path:
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder / "t.csv"


def test_a_table_of_samples_keeps_what_it_knows(tmp_path: Path) -> None:
    path = csv(
        tmp_path,
        "source,prompt_id,sample_idx,length,reward,truncated,max_tokens,colour",
        "m,p,4,2048,1,1,2048.0,red",
        "m,p,5,100,,1,2048.0,red",
        "m,q,,7,0.5,0,,",
    )
    frame, info = imported("csv", path, tmp_path)
    assert frame["prompt_id"].to_list() == ["m/p", "m/p", "m/q"]
    assert frame["sample"].to_list() == [4, 5, 0]
    assert frame["generated_tokens"].to_list() == [2048, 100, 7]
    assert frame["reward"].to_list() == [1.0, None, 0.5]
    assert frame["truncated"].to_list() == [True, False, False]
    assert frame["max_new_tokens"].to_list() == [2048, 2048, None]
    assert any("below its cap" in sentence for sentence in info.assumed)


def test_a_table_of_requests_has_times(tmp_path: Path) -> None:
    path = csv(
        tmp_path,
        "arrival_s,context_tokens,generated_tokens,images,image_tokens,duration_s",
        "100.5,10,20,1,8,2.5",
        "101.0,11,21,0,0,",
    )
    frame, _ = imported("csv", path, tmp_path)
    assert frame["started_s"].to_list() == [0.0, 0.5]
    assert frame["ended_s"].to_list() == [2.5, None]
    assert frame["prompt_tokens"].to_list() == [10, 11]
    assert frame["image_tokens"].to_list() == [8, 0]


def test_a_table_of_turns_is_joined_into_trajectories(tmp_path: Path) -> None:
    path = csv(
        tmp_path,
        "task_id,trial,turn,context_tokens,generated_tokens",
        "a,0,0,10,5",
        "a,0,1,30,6",
        "a,1,0,10,7",
    )
    frame, _ = imported("csv", path, tmp_path)
    assert frame["generated_tokens"].to_list() == [11, 7]
    assert frame["turn_tokens"].to_list() == [[5, 6], [7]]
    assert frame["turn_prompt_tokens"].to_list() == [[10, 30], [10]]
    assert frame["prompt_tokens"].to_list() == [10, 10]
    assert frame["sample"].to_list() == [0, 1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("p,many,1", "length is 'many'; valid: an integer"),
        ("p,-3,1", "length is '-3'"),
        ("p,2.5,1", "length is '2.5'"),
        ("p,inf,1", "length is 'inf'"),
        ("p,,1", "the length is missing"),
        ("p,3,nan", "reward is 'nan'; valid: a number"),
        ("p,3", "2 fields, 3 columns"),
    ],
)
def test_a_bad_field_is_named_by_line_and_column(line: str, why: str, tmp_path: Path) -> None:
    path = csv(tmp_path, "prompt_id,length,reward", "p,3,1", line)
    with pytest.raises(BadRecordError) as caught:
        imported("csv", path, tmp_path)
    assert f"{path}, line 3: {why}" in str(caught.value)
    _, info = imported("csv", path, tmp_path, skip_bad=True)
    assert (info.rows, info.skipped) == (1, 1)


def test_a_table_without_lengths_is_told_its_columns(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="it has prompt_id, reward"):
        imported("csv", csv(tmp_path, "prompt_id,reward", "p,1"), tmp_path)


def test_a_gzip_that_breaks_off_is_an_error_and_not_a_shorter_run(tmp_path: Path) -> None:
    whole = gzip.compress(("length\n" + "12345\n" * 100_000).encode())
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInputError, match="cannot read"):
        imported("csv", tmp_path / "t.csv.gz", tmp_path)


def test_real_samples_are_read_as_calibration_reads_them(tmp_path: Path) -> None:
    path = real_data("multisample_rg_llama3b_rl_aime24_amc23_n50.csv.gz")
    frame, info = imported("csv", path, tmp_path)
    samples = samples_from_csv(path)
    assert info.rows == len(samples.length)
    assert frame["prompt_id"].to_list() == samples.prompt
    assert frame["truncated"].to_list() == samples.truncated.tolist()
    whole = ~samples.truncated
    assert (frame["generated_tokens"].to_numpy()[whole] == samples.length[whole]).all()
    assert (frame["max_new_tokens"].to_numpy() == samples.max_new_tokens).all()


def test_turns_without_a_prompts_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="needs prompt_id"):
        imported("csv", csv(tmp_path, "turn,length", "0,5"), tmp_path)
