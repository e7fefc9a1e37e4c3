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
        nested = isinstance(value, msgspec.Struct)
        row.update(msgspec.structs.asdict(value) if nested else {name: value})
    return {name: value if _is_plain(value) else _json(value) for name, value in row.items()}


def _is_plain(value: object) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, _PLAIN) for item in items)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
