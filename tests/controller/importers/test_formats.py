"""Each trainer's log becomes the table that it tells of, and nothing more."""

from pathlib import Path

import pytest
from support.imports import TOKENIZER, groups, imported

from steersman.controller.results import Prompt
from steersman.controller.runs.table import SCHEMA

WORDS = [3, 1, 6, 1, 2, 1]
"""Of the answers in the text-only fixtures."""
TIMES = {"started_s", "ended_s", "turn_wait_s"}
TURNS = {"turns", "turn_tokens", "turn_prompt_tokens", "turn_wait_s"}
IMAGES = {"images", "image_tokens"}
TEXT_ONLY = {"max_new_tokens", "truncated", "censored", "weight_version", "replica"}
MISSING = {
    ("verl", "verl"): TEXT_ONLY | TIMES | TURNS | IMAGES,
    ("verl", "verl_legacy"): TEXT_ONLY | TIMES | TURNS | IMAGES,
    ("trl", "trl"): TEXT_ONLY | TIMES | TURNS | IMAGES,
    ("trl", "trl_chat"): TEXT_ONLY | TIMES | TURNS | IMAGES,
    ("roll", "roll"): {"censored", "weight_version", "replica"} | TIMES | TURNS | IMAGES,
    ("areal", "areal"): {"step", "max_new_tokens", "truncated", "replica", *IMAGES}
    | {"turn_tokens", "turn_prompt_tokens"},
    ("areal", "areal/rollout"): {"step", "max_new_tokens", "truncated", "replica", *IMAGES}
    | TURNS
    | TIMES,
    ("prime-rl", "prime_rl"): {"replica"} | IMAGES,
    ("nemo-rl", "nemo_rl"): (TEXT_ONLY | TIMES | IMAGES),
    ("slime", "slime"): {"replica", "image_tokens", "turn_prompt_tokens"},
}
"""(format, fixture) -> what its log does not tell."""


def options(format: str) -> dict[str, object]:
    if format in ("verl", "trl", "roll"):
        pytest.importorskip("tokenizers")
        return {"tokenizer": TOKENIZER}
    if format == "slime":
        pytest.importorskip("torch")
        return {"trust_pickle": True}
    return {}


@pytest.mark.parametrize(("format", "fixture"), MISSING)
def test_what_a_format_lacks_is_null(format: str, fixture: str, tmp_path: Path) -> None:
    frame, info = imported(format, fixture, tmp_path, options(format))
    nulls = {name: frame[name].null_count() for name in SCHEMA}
    assert {name for name, count in nulls.items() if count == len(frame)} == MISSING[
        (format, fixture)
    ]
    assert set(info.missing) == MISSING[(format, fixture)]
    assert info.partly_missing == {
        name: count for name, count in nulls.items() if 0 < count < len(frame)
    }
    assert info.rows == len(frame)
    assert info.skipped == 0


@pytest.mark.parametrize(("format", "fixture"), MISSING)
def test_turns_add_up_and_times_begin_at_zero(format: str, fixture: str, tmp_path: Path) -> None:
    frame, _ = imported(format, fixture, tmp_path, options(format))
    for row in frame.iter_rows(named=True):
        if row["prompt_id"] is not None:
            assert row["prompt_key"] == Prompt(row["prompt_id"], ()).key
        if row["turn_tokens"] is not None:
            assert sum(row["turn_tokens"]) == row["generated_tokens"]
            assert len(row["turn_tokens"]) == row["turns"]
        if row["turn_prompt_tokens"] is not None:
            assert row["turn_prompt_tokens"][0] == row["prompt_tokens"]
        if row["turn_wait_s"] is not None:
            assert len(row["turn_wait_s"]) == row["turns"] - 1
    if frame["started_s"].drop_nulls().len():
        assert frame["started_s"].min() == 0.0


def test_verl_names_its_groups_and_its_steps_are_in_order(tmp_path: Path) -> None:
    frame, info = imported("verl", "verl", tmp_path, options("verl"))
    assert frame["step"].to_list() == [2] * 6 + [10] * 6
    assert frame["generated_tokens"].to_list() == WORDS * 2
    assert frame["prompt_tokens"].to_list() == [5] * 12
    assert frame["reward"].to_list() == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0] * 2
    assert groups(frame) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert frame["sample"].to_list() == [0, 1, 2] * 4
    assert frame["prompt_key"].n_unique() == 2
    assert not any("group" in sentence for sentence in info.assumed)


def test_older_verl_trainers_groups_are_found_by_their_prompts(tmp_path: Path) -> None:
    frame, info = imported("verl", "verl_legacy", tmp_path, options("verl"))
    assert groups(frame) == [[0, 2, 4], [1, 3, 5]]
    assert any("groups" in sentence for sentence in info.assumed)


def test_a_cap_that_is_told_by_hand_marks_what_was_truncated(tmp_path: Path) -> None:
    frame, info = imported("verl", "verl", tmp_path, options("verl"), max_new_tokens=6)
    assert frame["max_new_tokens"].to_list() == [6] * 12
    assert frame["truncated"].to_list() == [n >= 6 for n in WORDS] * 2
    assert any("cap on new tokens is 6" in sentence for sentence in info.assumed)


@pytest.mark.parametrize("fixture", ["trl", "trl_chat"])
def test_trl_writes_a_batch_for_each_step_it_serves_but_it_counts_once(
    fixture: str, tmp_path: Path
) -> None:
    frame, info = imported("trl", fixture, tmp_path, options("trl"))
    assert info.repeated == 16
    assert frame["step"].to_list() == [1] * 8 + [3] * 8
    assert groups(frame) == [[i, i + 1] for i in range(0, 16, 2)]
    assert frame["generated_tokens"].max() == 8
    assert frame["prompt_tokens"].to_list() == [7] * 16
    assert any("sum of length, never" in sentence for sentence in info.assumed)


def test_roll_has_a_cap_where_it_wrote_its_generation_config(tmp_path: Path) -> None:
    frame, _ = imported("roll", "roll", tmp_path, options("roll"))
    assert frame["generated_tokens"].to_list() == WORDS * 2
    assert frame["max_new_tokens"].to_list() == [None] * 6 + [5] * 6
    assert frame["truncated"].to_list() == [None] * 6 + [n >= 5 for n in WORDS]
    assert groups(frame) == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_areal_has_the_times_of_its_sessions(tmp_path: Path) -> None:
    frame, info = imported("areal", "areal", tmp_path)
    assert frame["generated_tokens"].to_list() == [7, 3, 4]
    assert frame["prompt_tokens"].to_list() == [5, 5, 6]
    assert frame["weight_version"].to_list() == [None, None, 3]
    assert groups(frame) == [[0, 1], [2]]
    assert frame["started_s"].to_list() == [0.0, 0.5, 1.0]
    assert frame["ended_s"].to_list() == [8.75, 4.25, 6.75]
    assert frame["turn_wait_s"].to_list() == [[1.0]] * 3
    assert any("i-th session" in sentence for sentence in info.assumed)


def test_prime_rl_has_the_calls_of_each_trajectory(tmp_path: Path) -> None:
    frame, _ = imported("prime-rl", "prime_rl", tmp_path)
    assert frame["step"].to_list() == [0, 0, 1, 1]
    assert frame["weight_version"].to_list() == [0, 0, 1, 1]
    assert frame["prompt_id"].to_list() == ["math/a", "math/a", "math/b", "math/b"]
    assert groups(frame) == [[0, 1], [2, 3]]
    assert frame["generated_tokens"].to_list() == [30, 64, 31, None]
    assert frame["truncated"].to_list() == [False, True, False, None]
    assert frame["censored"].to_list() == [False, False, False, True]
    assert frame["max_new_tokens"].to_list() == [64, 64, None, None]
    assert frame["turn_tokens"].to_list()[2] == [10, 12, 9]
    assert frame["turn_prompt_tokens"].to_list()[2] == [25, 50, 80]
    assert frame["turn_wait_s"].to_list()[2] == [1.5, 1.0]
    assert frame["ended_s"].to_list() == [4.0, 9.0, 8.0, None]
    assert frame["reward"].to_list() == pytest.approx([1.1, 1.1, 1.1, None])


def test_prime_rls_effective_episodes_are_read_only_where_asked(tmp_path: Path) -> None:
    path = "prime_rl/rollouts/step_0/train/effective"
    frame, info = imported("prime-rl", path, tmp_path)
    assert frame["generated_tokens"].to_list() == [64]
    assert any("effective" in sentence for sentence in info.assumed)


def test_nemo_rl_has_its_turns_in_the_loss_mask(tmp_path: Path) -> None:
    frame, _ = imported("nemo-rl", "nemo_rl", tmp_path)
    assert frame["step"].to_list() == [3] * 4
    assert frame["prompt_tokens"].to_list() == [3, 3, 2, 2]
    assert frame["generated_tokens"].to_list() == [2, 3, 3, 3]
    assert frame["turn_tokens"].to_list() == [[2], [3], [3], [1, 2]]
    assert frame["turn_prompt_tokens"].to_list() == [[3], [3], [2], [2, 4]]
    assert groups(frame) == [[0, 1], [2, 3]]


def test_slime_joins_what_was_aborted_and_resumed(tmp_path: Path) -> None:
    frame, _ = imported("slime", "slime", tmp_path, options("slime"))
    assert frame["step"].to_list() == [7] * 4
    assert frame["generated_tokens"].to_list() == [11, 32, 17, 2]
    assert frame["turn_tokens"].to_list() == [[5, 6], [32], [17], None]
    assert frame["turn_wait_s"].to_list() == [[2.0], [], [], None]
    assert frame["ended_s"].to_list() == [4.0, 5.0, 12.0, None]
    assert frame["truncated"].to_list() == [False, True, False, False]
    assert frame["censored"].to_list() == [False, False, False, True]
    assert frame["weight_version"].to_list() == [None, 3, 3, None]
    assert frame["images"].to_list() == [0] * 4
