"""Samples from a CSV file, plain or gzipped.

Columns: prompt_id, length; where known also source, sample_idx, reward, truncated (0/1),
max_tokens, assistant_turns.  Others are ignored.  A sample's cap is its max_tokens, else the
longest length of its source if any of that source was truncated.  What was truncated below its cap
(a limit on turns, on context) wrote what it wrote: it counts as ended, not as cut off.
"""

from pathlib import Path

import numpy as np
import polars as pl

from steersman.controller.calibration.steps import Samples
from steersman.estimators.errors import InvalidInputError

RECOUNTED = 0.01
"""A length this share below its cap is the cap: texts are tokenized again with small losses."""
COUNTS = ("length", "max_tokens", "assistant_turns")
"""Columns that cannot be negative."""
NO_CAP = 1 << 20
"""Cap in tokens where no sample of a source was truncated: longer than any context."""


def samples_from_csv(path: Path) -> Samples:
    """Read them.  Raises `InvalidInputError` naming the column and the line."""
    try:
        table = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InvalidInputError(f"cannot read {path} as CSV: {error}") from error
    for column in ("prompt_id", "length"):
        if column not in table.columns:
            raise InvalidInputError(
                f"{path} has no column {column!r}; it has {', '.join(table.columns)}"
            )
    if table.is_empty():
        raise InvalidInputError(f"{path} holds no samples")
    length = _numbers(table, "length", path)
    source = _texts(table, "source")
    truncated = _numbers(table, "truncated", path, 0.0) > 0
    cap = _numbers(table, "max_tokens", path, np.nan)
    for name in set(source):
        own = np.array([s == name for s in source])
        known = own & np.isfinite(cap)
        longest = length[own].max() if truncated[own].any() else NO_CAP
        cap[own & ~known] = longest
    truncated &= length >= (1 - RECOUNTED) * cap
    length = np.where(truncated, cap, length)
    return Samples(
        prompt=[f"{s}/{p}" for s, p in zip(source, _texts(table, "prompt_id"), strict=True)],
        length=np.maximum(length, 1).astype(np.int64),
        truncated=truncated,
        max_new_tokens=np.maximum(cap, np.maximum(length, 1)).astype(np.int64),
        reward=_numbers(table, "reward", path, np.nan),
        turns=np.maximum(_numbers(table, "assistant_turns", path, 1.0), 1).astype(np.int64),
    )


def _texts(table: pl.DataFrame, column: str) -> list[str]:
    if column not in table.columns:
        return [""] * len(table)
    return [str(value) for value in table[column].to_list()]


def _numbers(
    table: pl.DataFrame, column: str, path: Path, missing: float | None = None
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A column as floats; `missing` stands for an absent column or an empty field, where given."""
    if column not in table.columns:
        return np.full(len(table), missing, dtype=np.float64)
    values = table[column].cast(pl.Float64, strict=False)
    least = 0.0 if column in COUNTS else -np.inf
    bad = values.is_null() & (table[column].is_not_null() | (missing is None))
    bad |= (~values.is_finite() | (values < least)).fill_null(False)
    if bad.any():
        row = int(bad.arg_true()[0])
        valid = "a number" if column not in COUNTS else "a number, 0 or more"
        raise InvalidInputError(
            f"{path}, line {row + 2}: {column} is {table[column][row]!r}; valid: {valid}"
        )
    if missing is not None:
        values = values.fill_null(missing)
    return values.to_numpy().astype(np.float64)
