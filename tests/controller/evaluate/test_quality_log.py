"""Quality logs are read as they were written, go on after a crash, and say what is wrong."""

import json
import math
from pathlib import Path

import pytest

from steersman.controller.evaluate.quality_log import QualityLog, QualityPoint
from steersman.controller.evaluate.reading import read
from steersman.estimators.errors import InvalidInputError

HEADER = {"metric": "pass@1", "hardware": "a laptop"}


def point(step: int = 0, **changes: object) -> QualityPoint:
    plain = {
        "arm": "ours", "seed": 0, "step": step, "tokens": 100 * step, "replica_s": 2.0 * step,
        "wall_s": 3.0 * step, "quality": 0.2 + 0.1 * step, "evaluated": 500,
        "extras": {"mean_length": 12.5},
    }  # fmt: skip
    return QualityPoint(**{**plain, **changes})  # type: ignore[arg-type]


def write(path: Path, *points: QualityPoint, header: dict[str, object] | None = None) -> Path:
    with QualityLog(path, header or HEADER) as log:
        for one in points:
            log.append(one)
    return path


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    study = read([write(tmp_path / "log.jsonl", point(0), point(1), point(2))])
    run = study.arm("ours")[0]
    assert study.header == HEADER
    assert run.tokens.tolist() == [0, 100, 200]
    assert run.replica_s.tolist() == [0, 2, 4]
    assert run.quality.tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert run.extras["mean_length"].tolist() == [12.5] * 3
    assert study.axes() == ["tokens", "replica_s", "wall_s"]


def test_costs_that_are_not_known_stay_so(tmp_path: Path) -> None:
    unknown = {"tokens": -1, "replica_s": math.nan}
    study = read([write(tmp_path / "log.jsonl", point(0, **unknown), point(1, **unknown))])
    assert study.axes() == ["wall_s"]
    with pytest.raises(InvalidInputError, match="tokens of arm 'ours', seed 0 are not known"):
        study.need("tokens")


def test_a_log_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", point(0), point(1))
    path.write_bytes(path.read_bytes()[:-9])
    assert len(read([write(tmp_path / "x.jsonl", point(0), point(1))]).arm("ours")[0].step) == 2
    write(path, point(1), point(2))
    assert read([path]).arm("ours")[0].step.tolist() == [0, 1, 2]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", point(0), point(1), point(2))
    path.write_bytes(path.read_bytes()[:-9])
    assert read([path]).arm("ours")[0].step.tolist() == [0, 1]


def test_a_log_of_something_else_is_not_continued(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", point(0))
    with pytest.raises(InvalidInputError, match="its header is another"):
        QualityLog(path, {"metric": "reward"})
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quality": math.nan}, "arm 'ours', seed 0, step 1: quality is nan"),
        ({"quality": 1.2}, "quality is 1.2; valid: a share of the 500 evaluated"),
        ({"evaluated": -1}, "evaluated is -1; valid: 0 or more"),
    ],
)
def test_a_point_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        point(1, **changes)


def test_a_bad_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", point(0), point(1))
    lines = path.read_text().splitlines()
    bad = json.loads(lines[1]) | {"quality": None}
    path.write_text("\n".join([lines[0], json.dumps(bad), lines[2]]) + "\n")
    with pytest.raises(InvalidInputError, match=r"log.jsonl:2: .*quality"):
        read([path])


def test_costs_that_fall_are_an_error_that_names_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", point(0), point(2), point(3, tokens=150))
    with pytest.raises(
        InvalidInputError, match=r"arm 'ours', seed 0: tokens fall from 200 to 150 at step 3"
    ):
        read([path])


def test_costs_that_stay_at_nothing_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", point(0, wall_s=0.0), point(1, wall_s=0.0))
    with pytest.raises(InvalidInputError, match=r"wall-clock seconds are 0 to the end; leave them"):
        read([path])


def test_runs_without_a_common_cost_are_an_error(tmp_path: Path) -> None:
    only = {"a": {"replica_s": math.nan, "wall_s": math.nan}, "b": {"tokens": -1}}
    points = [point(i, arm=arm, **own) for arm, own in only.items() for i in (0, 1)]
    study = read([write(tmp_path / "log.jsonl", *points)])
    with pytest.raises(InvalidInputError, match="no cost that all runs tell"):
        study.chosen_axes([])


def test_a_run_in_two_files_is_an_error(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, point(0), point(1)) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(InvalidInputError, match="arm 'ours', seed 0 is in two files"):
        read(paths)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("hello\n", "neither a quality log nor a trace"),
        ('{"kind": "header"}\n', "holds no evaluation"),
        ('{"kind": "point"}\n', "neither a quality log nor a trace"),
    ],
)
def test_a_file_that_is_no_log_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read([tmp_path / "log.jsonl"])


def test_one_evaluation_is_no_curve(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="has one evaluation; valid: 2 or more"):
        read([write(tmp_path / "log.jsonl", point(0))])


def test_headers_of_several_files_are_told_together(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", point(0), point(1),
              header={"hardware": "x", "arms": {"ours": {"max_lag": 1}}})  # fmt: skip
    b = write(tmp_path / "b.jsonl", point(0, arm="b"), point(1, arm="b"),
              header={"hardware": "y", "arms": {"b": {"max_lag": 2}}})  # fmt: skip
    study = read([a, b])
    assert study.header["hardware"] == "x; y"
    assert (study.of_arm("ours"), study.of_arm("b")) == ({"max_lag": 1}, {"max_lag": 2})


# CSV


def csv(tmp_path: Path, text: str) -> Path:
    (tmp_path / "log.csv").write_text(text)
    return tmp_path / "log.csv"


def test_a_csv_file_is_read_with_what_it_has(tmp_path: Path) -> None:
    path = csv(tmp_path, "arm,seed,tokens,quality,evaluated,mean_length,note\n"
                         "a,1,0,0.2,500,9,hello\na,1,1e3,0.4,500,11,\n")  # fmt: skip
    run = read([path]).arm("a")[1]
    assert run.tokens.tolist() == [0, 1000]
    assert run.evaluated.tolist() == [500, 500]
    assert {name: value.tolist() for name, value in run.extras.items()} == {"mean_length": [9, 11]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arm,tokens\na,1\n", "has no column 'quality'"),
        ("arm,quality\na,0.5\n", "has no cost; valid: a column tokens, replica_s, wall_s"),
        ("arm,quality,tokens\na,nan,1\n", r"log.csv:2: .*quality is nan"),
        ("arm,quality,tokens\na,high,1\n", r"log.csv:2: could not convert"),
        ("arm,quality,tokens\n", "holds no evaluation"),
        ("arm,quality,tokens\na,0.5\n", "tokens of arm|has one evaluation"),
    ],
)
def test_a_csv_file_that_lacks_something_is_an_error(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read([csv(tmp_path, text)])
