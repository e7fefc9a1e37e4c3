"""A trace as tables: one Parquet file per kind of record, for whatever reads Parquet.

The fields of a nested struct (a decision, a replica's figures) become columns of their own; what
is nested deeper (a configuration, segments) becomes a JSON text.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from steersman.controller.trace.reader import read

_PLAIN = (str, int, float, bool, type(None))


def to_parquet(path: Path | str, folder: Path | str) -> list[Path]:
    """Write `folder`/KIND.parquet for each kind in the trace; returns the files."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in read(path):
        kind = record.__struct_config__.tag
        tables[str(kind)].append(_row(record))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for kind, rows in sorted(tables.items()):
        files.append(target / f"{kind}.parquet")
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(files[-1])
    return files


def _row(record: msgspec.Struct) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, msgspec.Struct):
            row.update(msgspec.structs.asdict(value))
        elif isinstance(value, _PLAIN) or (
            isinstance(value, list) and all(isinstance(item, _PLAIN) for item in value)
        ):
            row[name] = value
        else:
            row[name] = msgspec.json.encode(value).decode()
    return row


def _is_plain(value: object) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, _PLAIN) for item in items)
