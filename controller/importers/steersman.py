"""This project's own traces (`.jsonl`): what each trajectory asked for and what became of it.

The records are those of `controller/trace/records.py`.  A trajectory belongs to the step that
admitted its group, also when it was deferred and ended later.  One that was restarted, expired,
stopped, abandoned or had failed wrote at least what it wrote, and so did one that the trace leaves
without an end; both are censored.  Times count from the first request of each trajectory.

Lacks: turns, images.  A row waits in memory for its reward until the trace ends, some 500 bytes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steersman.controller.importers._files import find
from steersman.controller.importers._importer import Importer, group_number
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow
from steersman.controller.trace import records
from steersman.controller.trace.reader import TraceError, TraceReader
from steersman.estimators.lifecycle import ANSWERS, Disposition

_FILES = re.compile(r"/[^/]+\.jsonl$")
_WHOLE = {Disposition.FINISHED.value, Disposition.TRUNCATED.value}
_ANSWERS = {disposition.value for disposition in ANSWERS}


@dataclass(frozen=True)
class Steersman:
    """A trace of this project."""

    def files(self, path: Path) -> list[Path]:
        """By name."""
        return find(path, _FILES, "traces (.jsonl)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per trajectory, also those that were replaced by a fresh sample."""
        for file in files:
            log.files += 1
            reader = TraceReader(file)
            # with several files, groups and times of each are its own
            run = _Run(str(file) if len(files) > 1 else "")
            try:
                for record in reader:
                    yield from run.tell(record)
            except (TraceError, KeyError) as error:
                log.bad(file, *_what_is_wrong(file, error))
                log.assume("of a trace with a bad record, what comes after it is left out")
            log.advance(file.stat().st_size)
            if run.open:
                log.assume("trajectories without an end in the trace wrote at least what it shows")
            if reader.torn_lines:
                log.assume("a trace that breaks off in its last line is told up to there")
            yield from run.rest()


def _what_is_wrong(file: Path, error: TraceError | KeyError) -> tuple[str, str]:
    """Place and reason."""
    if isinstance(error, KeyError):
        return "a record", f"speaks of {error}, of which the trace has not told"
    line, _, why = str(error).removeprefix(f"{file}:").partition(": ")
    return (f"line {line}", why) if line.isdecimal() else ("the whole file", str(error))


class _Run:
    """What is going on at some place in a trace."""

    def __init__(self, name: str) -> None:
        self.open: dict[int, RunRow] = {}
        self._name = name
        self._begun_s = 0.0
        self._groups: dict[int, RunRow] = {}
        """Row with what all of a group share."""
        self._unrewarded: dict[int, RunRow] = {}

    def tell(self, record: records.Record) -> Iterator[RunRow]:
        """Rows that are complete with this record."""
        match record:
            case records.RunStarted():
                self._begun_s = record.started_unix_s if self._name else 0.0
            case records.GroupAdmitted():
                self._groups[record.group_id] = self._shared(record)
            case records.TrajectoryQueued():
                shared = self._groups[record.group_id]
                self.open[record.trajectory_id] = replace(
                    shared, sample=record.slot, generated_tokens=0, censored=True, truncated=False
                )
            case records.AttemptStarted() if record.trajectory_id in self.open:
                row = self.open[record.trajectory_id]
                row.replica = record.replica
                if row.started_s is None:
                    row.started_s = self._begun_s + record.t_s
            case records.AttemptEnded() if record.trajectory_id in self.open:
                row = self.open[record.trajectory_id]
                row.generated_tokens = (row.generated_tokens or 0) + record.tokens
                versions = [span.weight_version for span in record.spans]
                if row.weight_version is not None:
                    versions.append(row.weight_version)
                row.weight_version = min(versions, default=None)
            case records.TrajectoryEnded():
                yield from self._ended(record)
            case records.Rewarded() if record.trajectory_id in self._unrewarded:
                row = self._unrewarded.pop(record.trajectory_id)
                row.reward = record.reward
                yield row

    def rest(self) -> Iterator[RunRow]:
        """Rows that nothing completed."""
        yield from self._unrewarded.values()
        yield from self.open.values()

    def _shared(self, record: records.GroupAdmitted) -> RunRow:
        group = record.group_id
        return RunRow(
            step=record.step,
            group_id=group_number(self._name, group) if self._name else group,
            prompt_id=record.prompt_id,
            prompt_key=record.prompt_key,
            prompt_tokens=record.prompt_tokens,
            max_new_tokens=record.max_new_tokens,
        )

    def _ended(self, record: records.TrajectoryEnded) -> Iterator[RunRow]:
        row = self.open.pop(record.trajectory_id)
        row.ended_s = self._begun_s + record.t_s
        row.generated_tokens = record.generated_tokens
        row.truncated = record.disposition == Disposition.TRUNCATED
        row.censored = record.disposition not in _WHOLE
        row.weight_version = min((segment[0] for segment in record.segments), default=None)
        if record.disposition in _ANSWERS:
            self._unrewarded[record.trajectory_id] = row
        else:
            yield row


PLUGIN: type[Importer] = Steersman
