"""Appends records to a trace.  Cheap enough to be called for everything.

A record is encoded at once and written with the next batch: after `FLUSH_S` or `FLUSH_BYTES`, or on
`close`.  A crash loses at most that.  No thread and no clock: the records' own `t_s` says when.
"""

import logging
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from steersman.controller.trace.records import Record
from steersman.estimators.errors import InvalidInputError

FLUSH_S = 0.5
"""A viewer that follows the file is at most this far behind a busy run."""
FLUSH_BYTES = 256 * 1024
"""One write of this size takes about 0.1 ms, which no decision notices."""

log = logging.getLogger(__name__)


class TraceWriter:
    """One trace: a new file of JSON lines, or `records` in memory where `path` is None.

    A file that cannot be written any more (a full disk) ends the trace, not the run: `failure` says
    why, and later records are dropped.
    """

    def __init__(self, path: Path | str | None) -> None:
        self.path = None if path is None else Path(path)
        self.records: list[Record] = []
        """What was written, if it is kept in memory; else empty."""
        self.failure = ""
        self._buffer = bytearray()
        self._encode_into = msgspec.json.Encoder(enc_hook=_plain).encode_into
        self._flushed_s = 0.0
        self._file: BinaryIO | None = None if self.path is None else _new_file(self.path)

    def write(self, record: Record) -> None:
        """Append one record, or nothing if it cannot be encoded (then it raises).

        Ignored once the trace is closed or has failed.
        """
        if self.path is None:
            self.records.append(record)
            return
        if self._file is None:
            return
        buffer = self._buffer
        whole = len(buffer)
        try:
            self._encode_into(record, buffer, -1)
        except Exception:
            del buffer[whole:]  # the half of a line would make the rest unreadable
            raise
        buffer += b"\n"
        if record.t_s - self._flushed_s >= FLUSH_S or len(buffer) >= FLUSH_BYTES:
            self._flushed_s = record.t_s
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if self._file is None:
            return
        try:
            self._file.write(self._buffer)
            self._file.flush()
        except OSError as error:
            self.failure = f"{self.path}: {error}"
            log.exception("the trace ends here, the run goes on")
            self._file = None
        self._buffer.clear()

    def close(self) -> None:
        """Write what is waiting and close the file.  Idempotent."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


class NoTrace(TraceWriter):
    """Forgets what it is given, for runs that want no trace."""

    def __init__(self) -> None:
        super().__init__(None)

    def write(self, record: Record) -> None:
        """Nothing is kept."""


def _plain(value: Any) -> Any:
    """A policy's numpy scalar as a number: a decision that holds one must not end the steering."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a record holds a {type(value).__name__}, which JSON does not know")


def _new_file(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")
    except FileExistsError as error:
        raise InvalidInputError(f"{path} exists; a trace is never written over") from error
    except OSError as error:
        raise InvalidInputError(f"cannot write the trace {path}: {error.strerror}") from error
