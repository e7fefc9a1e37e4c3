"""AReaL: the folder of a trial's logs, with `rollout.dump_to_file: true`.

As written by AReaL 1.0.4.  `rollout/{tail_version}/{task_id}.jsonl`
(`areal/infra/workflow_executor.py`, `WorkflowExecutor._dump_trajectory`): one line a sample with
`task_id`, `sample_idx`, `seqlen`, `prompt_len`, `head_version`, `tail_version`, `reward`, `prompt`,
`completion`; `seqlen - prompt_len` is what the model wrote (over several turns `prompt_len` counts
the environment's tokens too), and the versions are those of the whole group.  AReaL's own
workflows count prompt tokens as version -1, so that `head_version` is -1 and the oldest version
that wrote a token is open.  A task is a group.
With `perf_tracer.session_tracer.enabled` also `session_tracer/**/sessions-r{rank}.jsonl`
(`areal/utils/perf_tracer.py`, `SessionRecord.to_dict`): one line a session with `task_id`,
`session_id`, `rank`, `submit_ts`, `finalized_ts` and `phases.generate` (spans of Unix seconds).

Lacks: the step, caps, truncation, replicas, lengths of turns; without sessions all times; samples
that ended on a token the model did not write, and rollouts that returned nothing.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from steersman.controller.importers._files import find, records
from steersman.controller.importers._importer import Importer, group_number, name_of_text
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow

_SESSIONS = re.compile(r"/sessions(?:-r\d+)?\.jsonl$")
_FILES = re.compile(r"/rollout/(\d+)/(\d+)\.jsonl$")


class _Sample(msgspec.Struct):
    task_id: int
    sample_idx: int
    seqlen: int
    prompt_len: int
    head_version: int
    reward: float
    prompt: str

    def __post_init__(self) -> None:
        if not 0 <= self.prompt_len <= self.seqlen:
            raise ValueError(f"prompt_len is {self.prompt_len} of seqlen {self.seqlen}")


class _Span(msgspec.Struct):
    start_ts: float
    end_ts: float | None = None


class _Phases(msgspec.Struct):
    generate: list[_Span] = []


class _Session(msgspec.Struct):
    task_id: int
    session_id: int
    rank: int
    submit_ts: float
    finalized_ts: float | None = None
    phases: _Phases = msgspec.field(default_factory=_Phases)


@dataclass(frozen=True)
class Areal:
    """AReaL's rollout dump, with its sessions where there are any."""

    def files(self, path: Path) -> list[Path]:
        """Sessions first, then samples by version and task."""
        samples = find(path, _FILES, "rollout dump of AReaL (rollout/{version}/{task}.jsonl)")
        return [*(sorted(path.rglob("sessions*.jsonl")) if path.is_dir() else []), *samples]

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per sample.  Sessions are kept in memory, some 300 bytes each."""
        sessions: dict[int, list[_Session]] = defaultdict(list)
        for file in files:
            if _SESSIONS.search(f"/{file.name}"):
                for _, session in records(file, _Session, log):
                    sessions[session.task_id].append(session)
                continue
            samples = [sample for _, sample in records(file, _Sample, log)]
            siblings = Counter(sample.task_id for sample in samples)
            for sample in samples:
                row = _row(sample)
                own = sessions.get(sample.task_id)
                if own:
                    _time(row, sorted(own, key=_id), siblings[sample.task_id], log)
                yield row


def _row(sample: _Sample) -> RunRow:
    row = RunRow(
        group_id=group_number(sample.task_id),
        sample=sample.sample_idx,
        prompt_tokens=sample.prompt_len,
        generated_tokens=sample.seqlen - sample.prompt_len,
        censored=False,
        reward=sample.reward,
        weight_version=sample.head_version if sample.head_version >= 0 else None,
    )
    row.name_prompt(name_of_text(sample.prompt))
    return row


def _id(session: _Session) -> int:
    return session.session_id


def _time(row: RunRow, sessions: list[_Session], siblings: int, log: ImportLog) -> None:
    """Times of the sample's session, if it is plain which one that is."""
    if len({session.rank for session in sessions}) > 1:
        log.assume("tasks that several ranks numbered alike have no times: which is whose is open")
        return
    if len(sessions) != siblings or row.sample is None or row.sample >= siblings:
        log.assume("tasks with other numbers of sessions and samples have no times")
        return
    if siblings > 1:
        log.assume("the i-th sample of a task belongs to its i-th session")
    session = sessions[row.sample]
    spans = [span for span in session.phases.generate if span.end_ts is not None]
    row.started_s = spans[0].start_ts if spans else session.submit_ts
    if not spans:
        log.assume("where no generation was traced, a sample lasts from submission to finalization")
        row.ended_s = session.finalized_ts
        return
    ends = [span.end_ts for span in spans if span.end_ts is not None]
    row.ended_s = max(ends)
    row.turns = len(spans)
    row.turn_wait_s = [
        max(0.0, after.start_ts - end) for end, after in zip(ends[:-1], spans[1:], strict=True)
    ]


PLUGIN: type[Importer] = Areal
