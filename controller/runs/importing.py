"""From a trainer's logs to a run table."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steersman.controller import plugins
from steersman.controller.calibration.tables import RECOUNTED
from steersman.controller.importers import KIND, formats, part
from steersman.controller.importers._importer import Importer
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunInfo, RunRow
from steersman.controller.runs.writer import RunWriter
from steersman.estimators.errors import InvalidInputError, UnknownNameError

COUNTS = (
    "step",
    "group_id",
    "sample",
    "prompt_tokens",
    "generated_tokens",
    "max_new_tokens",
    "weight_version",
    "turns",
    "images",
    "image_tokens",
)
LARGEST = 2**63 - 1
"""No column holds more."""


def import_run(
    format: str,
    path: Path,
    out: Path,
    options: Mapping[str, Any],
    *,
    max_new_tokens: int | None = None,
    skip_bad: bool = False,
    watch: Callable[[int], Callable[[int], None]] | None = None,
) -> RunInfo:
    """Write the run at `path` as the table `out`, or raise and leave nothing.

    `options` are the importer's fields.  `max_new_tokens` is the cap of all trajectories, where the
    log does not tell it.  `watch` gets the bytes there are and returns what is called with those
    read since.
    """
    if format not in formats():
        raise UnknownNameError("format of run logs", format, formats())
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InvalidInputError(f"max_new_tokens is {max_new_tokens}; valid: 1 or more")
    importer: Importer = plugins.build(KIND, part(format), options)
    files = importer.files(path)
    log = ImportLog(skip_bad=skip_bad)
    if watch is not None:
        log.advance = watch(sum(file.stat().st_size for file in files))
    with RunWriter(out) as writer:
        for number, row in enumerate(importer.rows(files, log)):
            if wrong := _impossible(row):
                log.bad(path, f"trajectory {number}", wrong)
                continue
            _complete(row, max_new_tokens, log)
            writer.write(row)
        return writer.finish(format, path, log)


def _impossible(row: RunRow) -> str:
    """What no trajectory can have, or nothing."""
    for name in COUNTS:
        value = getattr(row, name)
        if value is not None and not 0 <= value <= LARGEST:
            return f"{name} is {value}; valid: 0 or more"
    if row.started_s is not None and row.ended_s is not None and row.ended_s < row.started_s:
        return "it ended before it started"
    return ""


def _complete(row: RunRow, max_new_tokens: int | None, log: ImportLog) -> None:
    """What follows from the row itself, whatever the format."""
    if row.reward is not None and not math.isfinite(row.reward):
        row.reward = None
        log.assume("rewards that are not finite count as missing")
    if row.max_new_tokens is None and max_new_tokens is not None:
        row.max_new_tokens = max_new_tokens
        log.assume(f"the cap on new tokens is {max_new_tokens}, as the importing person said")
    cap, length = row.max_new_tokens, row.generated_tokens
    if row.truncated is None and cap is not None and length is not None:
        row.truncated = length >= cap * (1 - RECOUNTED if log.recounted else 1)
        log.assume(
            "what reached its cap counts as truncated"
            + (f" (within {RECOUNTED:.0%}, as lengths were counted again)" if log.recounted else "")
        )
