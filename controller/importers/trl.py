"""TRL: the folder `completions/` of a GRPO run with `log_completions=True`.

As written by TRL 1.16.0, `trl/trainer/grpo_trainer.py` (`GRPOTrainer.log`): a file
`completions_{step:05d}.parquet` per logged step with `step`, `prompt`, `completion` (text, or
messages of a conversation), a column of floats per reward function (NaN: not applicable), columns
from `log_extra`, and `advantage`.  The rows are the last generation batch, so that a batch used for
several steps is written several times, and batches between two logged steps are not written; an
evaluation's rows are mixed in where they came last.

Lacks: lengths, groups, caps, times, weight versions, replicas, and the reward itself: only its
parts, whose weights are not logged.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from steersman.controller.importers._files import find
from steersman.controller.importers._importer import Importer, Neighbours, name_of_text
from steersman.controller.importers._text import counted
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow

_FILES = re.compile(r"/completions_(\d+)\.parquet$")
_NEEDED = ("step", "prompt", "completion")


@dataclass(frozen=True)
class Trl:
    """TRL's logged completions."""

    tokenizer: str
    """Folder with the model's tokenizer.json."""

    def files(self, path: Path) -> list[Path]:
        """By step."""
        return find(path, _FILES, "completions of TRL (completions_{step}.parquet)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per row."""
        return counted(self._texts(files, log), self.tokenizer, log)

    def _texts(self, files: Sequence[Path], log: ImportLog) -> Iterator[tuple[RunRow, str, str]]:
        log.assume(Neighbours.ASSUMED)
        groups = Neighbours()
        before: pl.Series | None = None
        for file in files:
            table = _read(file, log)
            if table is None:
                continue
            content = table.select("prompt", "completion").hash_rows()
            if before is not None and content.equals(before):
                log.repeated += len(table)
                log.assume("a file with the same completions as the one before is the same batch")
                continue
            before = content
            rewards = _reward_columns(table, log)
            for number, record in enumerate(table.iter_rows(named=True), start=1):
                try:
                    prompt, answer = _text(record["prompt"], log), _text(record["completion"], log)
                    row = RunRow(step=int(record["step"]), reward=_reward(record, rewards))
                except (TypeError, ValueError, KeyError) as error:
                    log.bad(file, f"row {number}", f"{type(error).__name__}: {error}")
                    continue
                row.name_prompt(name_of_text(prompt))
                row.group_id, row.sample = groups.next((file, prompt))
                yield row, prompt, answer


def _read(file: Path, log: ImportLog) -> pl.DataFrame | None:
    log.files += 1
    log.advance(file.stat().st_size)
    try:
        table = pl.read_parquet(file)
    except (pl.exceptions.PolarsError, OSError) as error:
        log.bad(file, "the whole file", error)
        return None
    lacking = [name for name in _NEEDED if name not in table.columns]
    if lacking:
        log.bad(file, "the whole file", f"has no column {lacking[0]!r}")
        return None
    return table


def _reward_columns(table: pl.DataFrame, log: ImportLog) -> list[str]:
    columns = [
        name
        for name, kind in table.schema.items()
        if kind.is_float() and name not in (*_NEEDED, "advantage")
    ]
    if len(columns) > 1:
        log.assume(f"the reward is the plain sum of {', '.join(columns)}; weights are not logged")
    elif columns:
        log.assume(f"the reward is the column {columns[0]}")
    return columns


def _reward(record: Mapping[str, Any], columns: Sequence[str]) -> float | None:
    """As TRL adds them up: what is not applicable does not count."""
    parts = [record[name] for name in columns]
    known = [part for part in parts if part is not None and not math.isnan(part)]
    return sum(known) if known else None


def _text(value: Any, log: ImportLog) -> str:
    """A text, or the contents of a conversation's messages."""
    if isinstance(value, str):
        return value
    log.assume("of conversations only the contents count, not the chat template around them")
    contents = []
    for message in value:
        content = message["content"]
        parts = content if isinstance(content, list) else [{"text": content}]
        contents += [part.get("text") or "" for part in parts]
    return "\n".join(contents)


PLUGIN: type[Importer] = Trl
