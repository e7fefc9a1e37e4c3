"""The run table: one row per trajectory of a training run, whoever logged it; the input of replay.

A Parquet file with exactly the columns of `RunRow`, in that order, and one entry
`steersman.run` of key-value metadata: the JSON of a `RunInfo`.  Null means that the log does not
tell; nothing is filled in by guess.  What was concluded from something else (groups from equal
prompts, lengths from a tokenizer) is said in `RunInfo.assumed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
import polars as pl

from steersman.controller.results import Prompt
from steersman.estimators.errors import InvalidInputError

SCHEMA_VERSION = 1
"""Raised when a column changes its meaning or goes; readers refuse a newer one."""
METADATA_KEY = "steersman.run"


@dataclass(slots=True)
class RunRow:
    """One trajectory.  Times are in seconds; `RunWriter` counts them from the run's first."""

    step: int | None = None
    """The trainer's step it was asked for."""
    group_id: int | None = None
    """Unique within the run; its size means nothing."""
    prompt_id: str | None = None
    """The same prompt in another step has the same one."""
    prompt_key: int | None = None
    """`Prompt.key` of the name."""
    sample: int | None = None
    """0, 1, ... within the group (or, where there are no groups, of the prompt)."""
    prompt_tokens: int | None = None
    """Before the first generated token, images included."""
    generated_tokens: int | None = None
    """What the model wrote, over all turns, without what tools answered."""
    max_new_tokens: int | None = None
    """Cap on `generated_tokens`."""
    truncated: bool | None = None
    """A limit on tokens ended it, not the model."""
    censored: bool | None = None
    """Its length is only a lower bound: it was aborted, restarted, or deferred and lost."""
    reward: float | None = None
    weight_version: int | None = None
    """The oldest that wrote a token of it."""
    started_s: float | None = None
    """Its first request went out."""
    ended_s: float | None = None
    """Its last token came back."""
    replica: str | None = None
    """Where its last token was written."""
    turns: int | None = None
    """Times the model was asked to go on."""
    turn_tokens: list[int] | None = None
    """(turns,) generated in each; sums up to `generated_tokens`."""
    turn_prompt_tokens: list[int] | None = None
    """(turns,) context as each begins, what tools answered included; the first: `prompt_tokens`."""
    turn_wait_s: list[float] | None = None
    """(turns - 1,) between the end of a turn and the start of the next: tools, environment."""
    images: int | None = None
    """In its prompt."""
    image_tokens: int | None = None
    """Of `prompt_tokens`, those that stand for images."""

    def name_prompt(self, prompt_id: str) -> None:
        """Set the prompt's name and key."""
        self.prompt_id = prompt_id
        self.prompt_key = Prompt(prompt_id, ()).key


_TYPES: dict[str, pl.DataType] = {
    "step": pl.Int64(),
    "group_id": pl.Int64(),
    "prompt_id": pl.String(),
    "prompt_key": pl.Int64(),
    "sample": pl.Int64(),
    "prompt_tokens": pl.Int64(),
    "generated_tokens": pl.Int64(),
    "max_new_tokens": pl.Int64(),
    "truncated": pl.Boolean(),
    "censored": pl.Boolean(),
    "reward": pl.Float64(),
    "weight_version": pl.Int64(),
    "started_s": pl.Float64(),
    "ended_s": pl.Float64(),
    "replica": pl.String(),
    "turns": pl.Int64(),
    "turn_tokens": pl.List(pl.Int64),
    "turn_prompt_tokens": pl.List(pl.Int64),
    "turn_wait_s": pl.List(pl.Float64),
    "images": pl.Int64(),
    "image_tokens": pl.Int64(),
}
SCHEMA = pl.Schema(_TYPES)
"""Column -> type, in the file's order."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a run table says of itself."""

    schema_version: int = SCHEMA_VERSION
    format: str
    """Name of the importer that wrote it."""
    source: str
    """The path that was imported."""
    files: int
    """That were read there."""
    rows: int
    missing: list[str]
    """Columns the source tells nothing of: null in every row."""
    partly_missing: dict[str, int]
    """Columns that are null in some rows -> in how many."""
    assumed: list[str]
    """What was concluded, not read; a sentence each."""
    skipped: int
    """Bad records left out."""
    skipped_examples: list[str]
    """The first few of them: place and reason."""
    repeated: int
    """Records left out because the log holds them twice."""


@dataclass(frozen=True)
class RunTable:
    """A run in memory."""

    frame: pl.DataFrame
    """(rows,) with the columns of `SCHEMA`."""
    info: RunInfo


def read_run(path: Path | str) -> RunTable:
    """The run table in a file.  Raises `InvalidInputError` if it is none, or a newer one."""
    try:
        metadata = pl.read_parquet_metadata(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InvalidInputError(f"cannot read {path} as Parquet: {_line(error)}") from error
    if METADATA_KEY not in metadata:
        raise InvalidInputError(f"{path} is no run table; make one with `steersman import`")
    version = msgspec.json.decode(metadata[METADATA_KEY], type=_Version).schema_version
    if version > SCHEMA_VERSION:
        raise InvalidInputError(
            f"{path} has schema version {version}; this steersman reads up to {SCHEMA_VERSION}"
        )
    frame = pl.read_parquet(path)
    if frame.schema != SCHEMA:
        wrong = sorted(set(frame.schema.items()) ^ set(SCHEMA.items()), key=str)
        raise InvalidInputError(f"{path} has other columns than a run table: {wrong[0][0]}")
    return RunTable(frame, msgspec.json.decode(metadata[METADATA_KEY], type=RunInfo))


class _Version(msgspec.Struct):
    schema_version: int


def to_frame(rows: Sequence[RunRow]) -> pl.DataFrame:
    """Rows as columns."""
    columns = {f.name: [getattr(row, f.name) for row in rows] for f in fields(RunRow)}
    return pl.DataFrame(columns, schema=SCHEMA)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
