"""Reads quality logs (JSON lines or CSV) and traces into one study.

A trace is one run: its arm is the name given before it (`mine=run.jsonl`), or what was decided by
(placement, and prompt policy where there is one).  A CSV file has one evaluation a row: columns
`arm`, `quality` and one cost or more (`tokens`, `replica_s`, `wall_s`) are needed, `seed`, `step`
and `evaluated` are understood, and all others that are numbers become extras.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec

from steersman.controller.evaluate.quality_log import HEADER, POINT, QualityPoint
from steersman.controller.evaluate.study import AXES, Study, study_of
from steersman.controller.evaluate.traced import trace_points
from steersman.estimators.errors import InvalidInputError

Found = tuple[dict[str, Any], list[QualityPoint]]
"""A header and what follows it."""
KNOWN = ("arm", "seed", "step", "tokens", "replica_s", "wall_s", "quality", "evaluated")


def read(paths: Iterable[Path | str]) -> Study:
    """The study that some files hold; `ARM=FILE` names the arm of a trace."""
    points: list[tuple[str, QualityPoint]] = []
    header: dict[str, Any] = {}
    for given in paths:
        arm, path = split_name(given)
        found, own = _read_one(path, arm)
        points += [(str(path), point) for point in own]
        _merge(header, found)
    if not points:
        raise InvalidInputError("no quality log or trace was given")
    return study_of(points, header)


def split_name(given: Path | str) -> tuple[str, Path]:
    """`ARM=FILE` as (arm, file); a file's own name may hold an equals sign."""
    text = str(given)
    arm, equals, rest = text.partition("=")
    if equals and "/" not in arm and not Path(text).exists():
        return arm, Path(rest)
    return "", Path(text)


def _read_one(path: Path, arm: str) -> Found:
    try:
        with path.open("rb") as file:
            first = file.readline()
    except OSError as error:
        raise InvalidInputError(f"{path}: {error.strerror}") from error
    if not first.strip():
        raise InvalidInputError(f"{path} is empty")
    if path.suffix == ".csv":
        header: dict[str, Any] = {}
        points = list(_csv_points(path))
    elif _kind(first) == "run_started":
        return trace_points(path, arm)
    else:
        header, points = _log(path)
    if arm:
        raise InvalidInputError(f"{path} is no trace and names its arms itself, {arm!r} cannot")
    if not points:
        raise InvalidInputError(f"{path} holds no evaluation")
    return header, points


def _kind(line: bytes) -> str:
    try:
        first = json.loads(line)
    except ValueError:
        return ""
    return str(first.get("kind", "")) if isinstance(first, dict) else ""


def _log(path: Path) -> Found:
    lines = path.read_bytes().split(b"\n")
    if _kind(lines[0]) != HEADER:
        raise InvalidInputError(
            f"{path} is neither a quality log nor a trace: its first line has no kind "
            f'"{HEADER}" or "run_started"'
        )
    header = {k: v for k, v in json.loads(lines[0]).items() if k != "kind"}
    points = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        try:
            points.append(_point(line))
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            if number == len(lines):
                break  # torn by a crash: the last line has no end
            raise InvalidInputError(f"{path}:{number}: {error}") from error
    return header, points


def _point(line: bytes) -> QualityPoint:
    plain = json.loads(line)
    if not isinstance(plain, dict) or plain.pop("kind", None) != POINT:
        raise InvalidInputError(f'no evaluation: its kind is not "{POINT}"')
    for name in ("replica_s", "wall_s"):
        if plain.get(name) is None:
            plain[name] = math.nan
    return msgspec.convert(plain, QualityPoint)


def _csv_points(path: Path) -> Iterator[QualityPoint]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is no text: {error}") from error
    with StringIO(text, newline="") as file:
        rows = csv.DictReader(file)
        columns = list(rows.fieldnames or ())
        for needed in ("arm", "quality"):
            if needed not in columns:
                raise InvalidInputError(
                    f"{path} has no column {needed!r}; it has {', '.join(columns)}"
                )
        if not any(axis in columns for axis in AXES):
            raise InvalidInputError(f"{path} has no cost; valid: a column {', '.join(AXES)}")
        for number, row in enumerate(rows, start=2):
            try:
                yield _csv_point(row)
            except (ValueError, TypeError) as error:
                raise InvalidInputError(f"{path}:{number}: {error}") from error


def _csv_point(row: dict[str, str]) -> QualityPoint:
    def whole(name: str, missing: int) -> int:
        text = row.get(name) or ""
        return round(float(text)) if text.strip() else missing

    def number(name: str) -> float:
        text = row.get(name) or ""
        return float(text) if text.strip() else math.nan

    extras = {}
    for name, text in row.items():
        if name not in KNOWN and text:
            try:
                extras[name] = float(text)
            except ValueError:
                continue  # a note, no figure
    return QualityPoint(
        arm=row["arm"],
        seed=whole("seed", 0),
        step=whole("step", 0),
        tokens=whole("tokens", -1),
        replica_s=number("replica_s"),
        wall_s=number("wall_s"),
        quality=number("quality"),
        evaluated=whole("evaluated", 0),
        extras=extras,
    )


def _merge(header: dict[str, Any], found: dict[str, Any]) -> None:
    """What files say differently is said one after the other."""
    for key, value in found.items():
        if key == "arms" and isinstance(value, dict):
            header.setdefault("arms", {}).update(value)
        elif key not in header:
            header[key] = value
        elif isinstance(value, str) and value not in str(header[key]).split("; "):
            header[key] = f"{header[key]}; {value}"
