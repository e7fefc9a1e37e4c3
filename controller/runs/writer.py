"""Writes a run table in batches, so that a run of any size needs the memory of one batch.

Batches go to part files in a hidden folder beside the target.  Only when all are there are the
run's first moment and its missing columns known; the parts are then streamed into one file, which
is renamed to its name.  Whatever fails before leaves nothing behind.
"""

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import polars as pl

from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import METADATA_KEY, SCHEMA, RunInfo, RunRow, to_frame
from steersman.estimators.errors import InvalidInputError

BATCH = 32_768
"""Rows per part: about 30 MB as Python objects, and few enough parts for a run of 10^7."""
TIMES = ("started_s", "ended_s")


class RunWriter:
    """Use as a context: `write` rows, then `finish` once."""

    def __init__(self, path: Path, batch: int = BATCH) -> None:
        self.path = path
        self.rows = 0
        self._batch = batch
        self._waiting: list[RunRow] = []
        self._nulls: Counter[str] = Counter()
        self._parts: list[Path] = []
        self._first_s = float("inf")

    def __enter__(self) -> Self:
        if self.path.is_dir():
            raise InvalidInputError(f"cannot write {self.path}: it is a folder")
        try:
            folder = tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as error:
            raise InvalidInputError(f"cannot write {self.path}: {error.strerror}") from error
        self._folder = Path(folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, row: RunRow) -> None:
        """Add one row."""
        self._waiting.append(row)
        if len(self._waiting) >= self._batch:
            self._flush()

    def finish(self, format: str, source: Path, log: ImportLog) -> RunInfo:
        """Put the table in its place; returns what it says of itself."""
        self._flush()
        if not self._parts:
            bad = f" ({log.skipped} bad records)" if log.skipped else ""
            raise InvalidInputError(f"no trajectory found in {source}{bad}")
        info = RunInfo(
            format=format,
            source=str(source),
            files=log.files,
            rows=self.rows,
            missing=[name for name in SCHEMA if self._nulls[name] == self.rows],
            partly_missing={
                name: self._nulls[name] for name in SCHEMA if 0 < self._nulls[name] < self.rows
            },
            assumed=log.assumed,
            skipped=log.skipped,
            skipped_examples=log.skipped_examples,
            repeated=log.repeated,
        )
        try:
            self._join({METADATA_KEY: msgspec.json.encode(info).decode()})
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InvalidInputError(f"cannot write {self.path}: {error}") from error
        return info

    def _join(self, metadata: dict[str, str]) -> None:
        whole = self._folder / "whole.parquet"
        table = pl.scan_parquet(self._parts, schema=SCHEMA)
        if self._first_s < float("inf"):
            table = table.with_columns(pl.col(*TIMES) - self._first_s)
        table.sink_parquet(whole, metadata=metadata)
        whole.replace(self.path)

    def _flush(self) -> None:
        if not self._waiting:
            return
        part = to_frame(self._waiting)
        self.rows += len(part)
        self._waiting = []
        self._nulls.update(part.null_count().row(0, named=True))
        first = part.select(pl.min_horizontal(pl.col(*TIMES).min())).item()
        if first is not None:
            self._first_s = min(self._first_s, first)
        self._parts.append(self._folder / f"{len(self._parts):06d}.parquet")
        part.write_parquet(self._parts[-1])
