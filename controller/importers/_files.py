"""Finding a run's files and reading their lines, plain or gzipped, with progress."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from steersman.controller.runs.log import ImportLog
from steersman.estimators.errors import InvalidInputError

T = TypeVar("T")


def find(path: Path, pattern: re.Pattern[str], what: str) -> list[Path]:
    """`path` itself if it is a file, else the files below whose absolute path has the pattern.

    Sorted by the integers in the pattern's groups, then by name.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InvalidInputError(f"{path} does not exist")
    found = []
    for file in path.rglob("*"):
        match = pattern.search(file.absolute().as_posix())
        if match and file.is_file():
            found.append((tuple(int(group) for group in match.groups()), file))
    if not found:
        raise InvalidInputError(f"{path} holds no {what}")
    return [file for _, file in sorted(found)]


def number_in(path: Path, pattern: re.Pattern[str]) -> int | None:
    """The first integer that the pattern finds in a file's path, if any."""
    match = pattern.search(path.absolute().as_posix())
    return int(match[1]) if match else None


def lines(path: Path, log: ImportLog) -> Iterator[tuple[int, bytes]]:
    """Line number and line; tells `log` of the file and of the bytes read."""
    log.files += 1
    try:
        with path.open("rb") as raw:
            if path.suffix != ".gz":
                for number, line in enumerate(raw, start=1):
                    log.advance(len(line))
                    yield number, line
                return
            done = 0
            for number, line in enumerate(gzip.GzipFile(fileobj=raw), start=1):
                log.advance(raw.tell() - done)
                done = raw.tell()
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"cannot read {path}: {error}") from error


def records(path: Path, kind: type[T], log: ImportLog) -> Iterator[tuple[int, T]]:
    """Line number and record of a file of JSON lines; bad lines go to `log`."""
    decode = decoder(kind)
    for number, line in lines(path, log):
        if line.isspace():
            continue
        try:
            record = decode(line)
        except msgspec.MsgspecError as error:
            log.bad(path, f"line {number}", error)
        else:
            yield number, record


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Decodes JSON as Python writes it: NaN and Infinity are let through."""
    decode = msgspec.json.Decoder(kind, strict=False).decode

    def lenient(line: bytes) -> T:
        try:
            return decode(line)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                raise
            return msgspec.convert(value, kind, strict=False)

    return lenient
