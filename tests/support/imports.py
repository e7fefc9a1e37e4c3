"""Runs of the importers on the fixtures."""

from pathlib import Path
from typing import Any

import polars as pl

from steersman.controller.runs.importing import import_run
from steersman.controller.runs.table import RunInfo, read_run

FIXTURES = Path(__file__).parents[1] / "data" / "importers"
TOKENIZER = str(FIXTURES / "tokenizer")
"""Its tokens are the words."""


def imported(
    format: str, path: Path | str, out: Path, options: dict[str, Any] | None = None, **rest: Any
) -> tuple[pl.DataFrame, RunInfo]:
    """The table of a fixture (or of any path), as it is read back."""
    written = import_run(format, FIXTURES / path, out / "run.parquet", options or {}, **rest)
    run = read_run(out / "run.parquet")
    assert run.info == written
    return run.frame, run.info


def groups(frame: pl.DataFrame) -> list[list[int]]:
    """Rows of each group, in order of appearance."""
    found: dict[int, list[int]] = {}
    for row, group in enumerate(frame["group_id"].to_list()):
        found.setdefault(group, []).append(row)
    return list(found.values())
