"""prime-rl: a run's output folder, `rollouts/step_{N}/train/{all,effective}/traces.jsonl`.

As written by prime-rl (github.com/PrimeIntellect-ai/prime-rl at 559b447),
`src/prime_rl/monitors/file.py` (`FileMonitor.log_episodes`), of records of verifiers 0.4.0
(`verifiers/v1/episode.py`, `Episode.to_record`, without null fields).  One line an episode: `task`
(`key`, `hash`), `group.id`, `run.work` (`type`, `step`, `policy.start/end`), `env`, `ok`,
`is_timeout` and `traces`, one per agent: `calls` (`usage`, `time.start/end`, `finish_reason`,
`sampling.max_tokens`, `error`), `rewards` (`score`, `weight`), `stop_condition`.  `all` has what
the trainer rejected, too, and is preferred to `effective`.

Lacks: replicas, and whatever was cancelled in flight.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from steersman.controller.importers._files import find, number_in, records
from steersman.controller.importers._importer import Importer, Siblings, group_number
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow
from steersman.estimators.errors import InvalidInputError

_ALL = re.compile(r"/step_(\d+)/train/all/traces\.jsonl(?:\.gz)?$")
_EFFECTIVE = re.compile(r"/step_(\d+)/train/effective/traces\.jsonl(?:\.gz)?$")
_STEP = re.compile(r"/step_(\d+)/")
_TOKEN_LIMITS = {"max_input_tokens", "max_output_tokens", "max_total_tokens"}
"""Of the stop conditions of `Trace.is_truncated`, those that are about tokens."""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    cached_input_tokens: int = 0


class _Span(msgspec.Struct):
    start: float = 0.0
    end: float = 0.0


class _Sampling(msgspec.Struct):
    max_tokens: int | None = None


class _Call(msgspec.Struct):
    usage: _Usage | None = None
    time: _Span = msgspec.field(default_factory=_Span)
    finish_reason: str | None = None
    sampling: _Sampling | None = None
    error: dict[str, Any] | None = None


class _Reward(msgspec.Struct):
    score: float
    weight: float = 1.0


class _Agent(msgspec.Struct):
    name: str = "agent"
    trainable: bool = True


class _Trace(msgspec.Struct):
    agent: _Agent = msgspec.field(default_factory=_Agent)
    calls: list[_Call] = []
    rewards: dict[str, _Reward | None] = {}
    ok: bool = False
    stop_condition: str | None = None
    is_timeout: bool = False


class _Task(msgspec.Struct):
    key: str | None = None
    hash: str | None = None


class _Env(msgspec.Struct):
    id: str = ""
    name: str | None = None


class _Group(msgspec.Struct):
    id: str


class _Policy(msgspec.Struct):
    start: int


class _Work(msgspec.Struct):
    type: str
    step: int
    policy: _Policy | None = None


class _Run(msgspec.Struct):
    work: _Work | None = None


class _Episode(msgspec.Struct):
    task: _Task
    env: _Env = msgspec.field(default_factory=_Env)
    group: _Group | None = None
    run: _Run | None = None
    is_timeout: bool = False
    traces: list[_Trace] = []


@dataclass(frozen=True)
class PrimeRl:
    """prime-rl's episodes."""

    def files(self, path: Path) -> list[Path]:
        """By step; only `all` if there is any of it."""
        try:
            return find(path, _ALL, "")
        except InvalidInputError:
            return find(path, _EFFECTIVE, "episodes of prime-rl (step_{N}/train/all/traces.jsonl)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per trace of an agent that is trained; evaluations are left out."""
        siblings = Siblings()  # a group's episodes can end in several steps
        for file in files:
            if _EFFECTIVE.search(file.as_posix()):
                log.assume("only what the trainer kept is known: `effective`, not `all`")
            step = number_in(file, _STEP)
            for _, episode in records(file, _Episode, log):
                work = episode.run.work if episode.run else None
                if work and work.type != "train":
                    continue
                for trace in episode.traces:
                    if trace.agent.trainable:
                        row = _row(trace)
                        row.step = work.step if work else step
                        row.weight_version = work.policy.start if work and work.policy else None
                        row.censored = not trace.ok or trace.is_timeout or episode.is_timeout
                        _name(row, episode, trace, siblings)
                        yield row


def _name(row: RunRow, episode: _Episode, trace: _Trace, siblings: Siblings) -> None:
    env = episode.env.name or episode.env.id
    task = episode.task.key or episode.task.hash
    if task:
        row.name_prompt(f"{env}/{task}")
    if episode.group:
        row.group_id = group_number(env, episode.group.id, trace.agent.name)
        row.sample = siblings.next(row.group_id)


def _row(trace: _Trace) -> RunRow:
    """Lengths and times from the calls that were answered."""
    row = RunRow()
    rewards = [reward for reward in trace.rewards.values() if reward is not None]
    if rewards:
        row.reward = sum(reward.score * reward.weight for reward in rewards)
    answered = [call for call in trace.calls if call.error is None]
    usages = [call.usage for call in answered if call.usage is not None]
    if not answered or len(usages) < len(answered):
        return row
    row.turn_prompt_tokens = [usage.prompt_tokens + usage.cached_input_tokens for usage in usages]
    row.prompt_tokens = row.turn_prompt_tokens[0]
    row.turn_tokens = [usage.completion_tokens for usage in usages]
    row.generated_tokens = sum(row.turn_tokens)
    row.turns = len(usages)
    row.truncated = answered[-1].finish_reason == "length" or trace.stop_condition in _TOKEN_LIMITS
    if len(answered) == 1 and answered[0].sampling:  # of several turns, it caps each of them
        row.max_new_tokens = answered[0].sampling.max_tokens
    spans = [call.time for call in answered]
    if all(span.end > 0 for span in spans):
        row.started_s, row.ended_s = spans[0].start, max(span.end for span in spans)
        row.turn_wait_s = [max(0.0, after.start - before.end) for before, after in pairwise(spans)]
    return row


PLUGIN: type[Importer] = PrimeRl
