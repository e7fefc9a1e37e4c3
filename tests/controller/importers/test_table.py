"""The run table says what it is, and nothing but a run table is taken for one."""

from dataclasses import fields
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import (
    METADATA_KEY,
    SCHEMA,
    SCHEMA_VERSION,
    RunRow,
    read_run,
    to_frame,
)
from steersman.controller.runs.writer import RunWriter
from steersman.estimators.errors import InvalidInputError

small = st.integers(0, 2**62)
seconds = st.floats(0, 1e9)
row = st.builds(
    RunRow,
    step=st.none() | small,
    group_id=st.none() | small,
    prompt_id=st.none() | st.text(max_size=5),
    generated_tokens=st.none() | small,
    truncated=st.none() | st.booleans(),
    reward=st.none() | st.floats(-10, 10),
    started_s=st.none() | seconds,
    ended_s=st.none() | seconds,
    turn_tokens=st.none() | st.lists(small, max_size=3),
    turn_wait_s=st.none() | st.lists(seconds, max_size=3),
)


def write(path: Path, rows: list[RunRow], batch: int = 2) -> None:
    with RunWriter(path, batch) as writer:
        for one in rows:
            writer.write(one)
        writer.finish("csv", Path("x.csv"), ImportLog())


def test_rows_and_columns_have_the_same_names() -> None:
    assert [f.name for f in fields(RunRow)] == list(SCHEMA)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(row, min_size=1, max_size=7))
def test_a_table_is_its_rows_with_time_counted_from_the_first(
    rows: list[RunRow], tmp_path: Path
) -> None:
    write(tmp_path / "run.parquet", rows)
    table = read_run(tmp_path / "run.parquet")
    times = [t for r in rows for t in (r.started_s, r.ended_s) if t is not None]
    first = min(times, default=0.0)
    expected = to_frame(rows).with_columns(pl.col("started_s", "ended_s") - first)
    assert table.frame.equals(expected)
    assert table.info.rows == len(rows)
    assert table.info.missing == [n for n in SCHEMA if expected[n].null_count() == len(rows)]


def test_an_empty_run_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no trajectory found"):
        write(tmp_path / "run.parquet", [])
    assert not list(tmp_path.iterdir())


def test_another_parquet_file_is_no_run_table(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(InvalidInputError, match="no run table"):
        read_run(path)
    path.write_text("text")
    with pytest.raises(InvalidInputError, match="cannot read"):
        read_run(path)


def test_a_newer_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    write(path, [RunRow(step=1)])
    info = msgspec.structs.replace(read_run(path).info, schema_version=SCHEMA_VERSION + 1)
    metadata = {METADATA_KEY: msgspec.json.encode(info).decode()}
    pl.read_parquet(path).write_parquet(path, metadata=metadata)
    with pytest.raises(InvalidInputError, match=f"schema version {SCHEMA_VERSION + 1}"):
        read_run(path)


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    write(path, [RunRow(step=1)])
    metadata = {METADATA_KEY: msgspec.json.encode(read_run(path).info).decode()}
    pl.read_parquet(path).drop("images").write_parquet(path, metadata=metadata)
    with pytest.raises(InvalidInputError, match="images"):
        read_run(path)
