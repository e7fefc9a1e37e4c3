"""CSV: any table of samples, requests or turns, plain or gzipped.

One line is a trajectory; where there is a column `turn`, one line is a turn, and lines that follow
each other with the same source, prompt and sample are one trajectory.

The first line names the columns.  Those of the run table (`controller/runs/table.py`) are taken by
their names, and by these as well:

    generated_tokens  length            prompt_tokens  context_tokens
    max_new_tokens    max_tokens        sample         sample_idx
    started_s         arrival_s         turns          assistant_turns
    prompt_id         task_id           sample         trial

`generated_tokens` must be there.  `source` goes before the prompt's name: the same text under other
weights is another prompt.  `duration_s` gives the end where the start is known.  An empty field
is missing; truncated and censored are 0 or 1; numbers may be written as 2048.0.  What is truncated
below its cap (a limit on turns, on context) wrote what it wrote: it counts as ended.  Lists
(`turn_tokens` ...) are not read.  Other columns are ignored.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steersman.controller.calibration.tables import RECOUNTED
from steersman.controller.importers._files import find, lines
from steersman.controller.importers._importer import Importer, Siblings
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow
from steersman.estimators.errors import InvalidInputError

_FILES = re.compile(r"/[^/]+\.csv(?:\.gz)?$")


def _integer(text: str) -> int:
    number = float(text)
    if number != int(number) or number < 0:
        raise ValueError
    return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _flag(text: str) -> bool:
    known = {"0": False, "1": True, "false": False, "true": True, "0.0": False, "1.0": True}
    return known[text.lower()]


_COLUMNS: dict[str, tuple[str, Callable[[str], int | float | bool | str], str]] = {
    "step": ("step", _integer, "an integer"),
    "group_id": ("group_id", _integer, "an integer"),
    "sample": ("sample", _integer, "an integer"),
    "sample_idx": ("sample", _integer, "an integer"),
    "trial": ("sample", _integer, "an integer"),
    "prompt_tokens": ("prompt_tokens", _integer, "an integer"),
    "context_tokens": ("prompt_tokens", _integer, "an integer"),
    "generated_tokens": ("generated_tokens", _integer, "an integer"),
    "length": ("generated_tokens", _integer, "an integer"),
    "max_new_tokens": ("max_new_tokens", _integer, "an integer"),
    "max_tokens": ("max_new_tokens", _integer, "an integer"),
    "truncated": ("truncated", _flag, "0 or 1"),
    "censored": ("censored", _flag, "0 or 1"),
    "reward": ("reward", _number, "a number"),
    "weight_version": ("weight_version", _integer, "an integer"),
    "started_s": ("started_s", _number, "a number"),
    "arrival_s": ("started_s", _number, "a number"),
    "ended_s": ("ended_s", _number, "a number"),
    "replica": ("replica", str, "a name"),
    "turns": ("turns", _integer, "an integer"),
    "assistant_turns": ("turns", _integer, "an integer"),
    "images": ("images", _integer, "an integer"),
    "image_tokens": ("image_tokens", _integer, "an integer"),
}
"""Column of the file -> (column of the table, how it is read, what is valid)."""


@dataclass(frozen=True)
class Csv:
    """A table of samples."""

    def files(self, path: Path) -> list[Path]:
        """By name."""
        return find(path, _FILES, "table (.csv, .csv.gz)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per line, or per run of lines that are turns of one trajectory."""
        siblings = Siblings()
        for file in files:
            for row in _joined(_lines(file, log)):
                if row.truncated and row.max_new_tokens and row.generated_tokens is not None:
                    row.truncated = row.generated_tokens >= (1 - RECOUNTED) * row.max_new_tokens
                    if not row.truncated:
                        log.assume("what is truncated below its cap counts as ended there")
                if row.sample is None and row.prompt_id is not None:
                    row.sample = siblings.next((row.group_id, row.prompt_id))
                yield row


class _FieldError(ValueError):
    pass


def _lines(file: Path, log: ImportLog) -> Iterator[tuple[RunRow, bool]]:
    """Row of each good line, and whether it is only a turn."""
    for number, record in _records(file, log):
        try:
            yield _row(record), "turn" in record
        except _FieldError as error:
            log.bad(file, f"line {number}", error)


def _joined(lines: Iterator[tuple[RunRow, bool]]) -> Iterator[RunRow]:
    """Trajectories, from turns where the lines are turns."""
    whole: RunRow | None = None
    for row, is_turn in lines:
        if not is_turn:
            yield row
            continue
        tokens = row.generated_tokens or 0
        if row.prompt_id is None:
            raise InvalidInputError("a table with a column 'turn' needs prompt_id (or task_id)")
        if whole is not None and (whole.prompt_id, whole.sample) == (row.prompt_id, row.sample):
            whole.turn_tokens = [*(whole.turn_tokens or []), tokens]
            whole.generated_tokens = sum(whole.turn_tokens)
            if whole.turn_prompt_tokens is not None and row.prompt_tokens is not None:
                whole.turn_prompt_tokens = [*whole.turn_prompt_tokens, row.prompt_tokens]
            else:
                whole.turn_prompt_tokens = None
            whole.turns = len(whole.turn_tokens)
            whole.truncated, whole.reward, whole.ended_s = row.truncated, row.reward, row.ended_s
            continue
        if whole is not None:
            yield whole
        contexts = None if row.prompt_tokens is None else [row.prompt_tokens]
        whole = replace(row, turns=1, turn_tokens=[tokens], turn_prompt_tokens=contexts)
    if whole is not None:
        yield whole


def _records(file: Path, log: ImportLog) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Line number and fields; a field that spans lines counts with its last."""
    texts = (
        line.decode("utf-8-sig" if n == 1 else "utf-8", "replace") for n, line in lines(file, log)
    )
    reader = csv.reader(texts)
    header = next(reader, [])
    if not {"generated_tokens", "length"} & set(header):
        raise InvalidInputError(
            f"{file} has no column 'generated_tokens' or 'length'; it has {', '.join(header)}"
        )
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            log.bad(file, f"line {reader.line_num}", error)
            continue
        if fields is None:
            return
        if not fields:
            continue
        if len(fields) != len(header):
            log.bad(file, f"line {reader.line_num}", f"{len(fields)} fields, {len(header)} columns")
            continue
        yield reader.line_num, dict(zip(header, fields, strict=True))


def _row(record: Mapping[str, str]) -> RunRow:
    row = RunRow()
    for name, text in record.items():
        if name not in _COLUMNS or not text:
            continue
        column, read, valid = _COLUMNS[name]
        try:
            setattr(row, column, read(text))
        except (ValueError, KeyError, OverflowError):
            raise _FieldError(f"{name} is {text!r}; valid: {valid}") from None
    if row.generated_tokens is None:
        raise _FieldError("the length is missing")
    prompt, source = record.get("prompt_id") or record.get("task_id"), record.get("source")
    if prompt:
        row.name_prompt(f"{source}/{prompt}" if source else prompt)
    if row.started_s is not None and row.ended_s is None and record.get("duration_s"):
        try:
            row.ended_s = row.started_s + _number(record["duration_s"])
        except ValueError:
            valid = f"duration_s is {record['duration_s']!r}; valid: a number"
            raise _FieldError(valid) from None
    return row


PLUGIN: type[Importer] = Csv
