"""Reads a trace, and checks that what it tells can have happened.

A line that is not a record is an error that names file and line; only the last line may be torn,
because that is what a crash in the middle of a write leaves.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from steersman.controller.trace._invariants import check
from steersman.controller.trace.records import SCHEMA_VERSION, Record
from steersman.estimators.errors import InvalidInputError

__all__ = ["TraceError", "TraceReader", "check", "read"]

log = logging.getLogger(__name__)


class TraceError(InvalidInputError):
    """A file is not a trace, or holds a line that is not a record."""


class _Header(msgspec.Struct, tag_field="kind", tag="run_started"):
    """What is read of the first line before its version is known."""

    schema_version: int


class TraceReader(Iterator[Record]):
    """The records of a file, one after the other; the file is never held in memory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.torn_lines = 0
        """1 after the end of a trace whose last line was cut off."""
        self._records = self._decoded()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        return next(self._records)

    def _decoded(self) -> Iterator[Record]:
        decode = msgspec.json.Decoder(Record).decode
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    try:
                        if number == 1:
                            self._check_header(line)
                        yield decode(line)
                    except msgspec.MsgspecError as error:
                        if line.endswith(b"\n"):
                            raise TraceError(f"{self.path}:{number}: {error}") from error
                        self.torn_lines += 1
                        log.warning("%s:%d: the last line is torn", self.path, number)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from error

    def _check_header(self, line: bytes) -> None:
        try:
            header = msgspec.json.decode(line, type=_Header)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{self.path} is not a trace: {error}") from error
        if header.schema_version > SCHEMA_VERSION:
            raise TraceError(
                f"{self.path} has schema version {header.schema_version}; this steersman reads "
                f"up to {SCHEMA_VERSION}"
            )


def read(path: Path | str) -> TraceReader:
    """The records of a trace, in order."""
    return TraceReader(path)
