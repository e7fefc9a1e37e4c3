"""slime: the files of `--save-debug-rollout-data` (or `--dump-details`), one `.pt` per rollout.

As written by slime (github.com/THUDM/slime at 624b824),
`slime/observability/rollout_data_utils.py` (`save_debug_rollout_data`): `torch.save` of
`{"rollout_id", "samples"}`, each sample a `Sample.to_dict()` (`slime/utils/types.py`):
`group_index`, `prompt`, `tokens` (prompt and response), `response_length` (tools' tokens included),
`loss_mask`, `reward`, `weight_versions` (texts, one per request), `status`, `multimodal_inputs` and
`trace.events` (`slime/observability/trace_utils.py`): `span_start` / `span_end` pairs named
`sglang_generate` (streamed: `sglang_generate_stream`), with `ts`, `span_id` and `attrs`
(`max_new_tokens` at the start; `prompt_tokens`, `completion_tokens`, `finish_reason` at the end).

A `.pt` file is a pickle, and loading a pickle runs whatever code its writer put in: it is read only
where `trust_pickle` says that the writer is trusted.

Lacks: replicas; a sample with a custom generate function has no spans, so no times and turns.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from steersman.controller.importers._files import find, number_in
from steersman.controller.importers._importer import (
    Importer,
    Siblings,
    group_number,
    name_of_text,
)
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow
from steersman.estimators.errors import InvalidInputError

_FILES = re.compile(r"/(?!eval_)[^/]*?(\d+)\.pt$")
_REQUESTS = {"sglang_generate", "sglang_generate_stream"}
_CUT_OFF = {"pending", "aborted", "failed"}
"""Of the values of `Sample.Status`, those after which more might have been written."""


class _Span(NamedTuple):
    start: float
    end: float
    tokens: int | None
    context: int | None
    cap: int | None
    aborted: bool


@dataclass(frozen=True)
class Slime:
    """slime's rollout data."""

    trust_pickle: bool = False
    """The files' writer may run code here."""

    def files(self, path: Path) -> list[Path]:
        """By rollout; evaluations are left out."""
        return find(path, _FILES, "rollout data of slime ({rollout_id}.pt)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per sample; a rollout's samples are held in memory."""
        if not self.trust_pickle:
            raise InvalidInputError(
                f"{files[0]} is a pickle, and reading one runs whatever code its writer put in; "
                "if you trust the writer, say --trust-pickle"
            )
        siblings = Siblings()
        for file in files:
            rollout, samples = _load(file, log)
            for number, sample in enumerate(samples):
                try:
                    row = _row(sample, log)
                    group = sample["group_index"]
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    log.bad(file, f"sample {number}", f"{type(error).__name__}: {error}")
                    continue
                row.step = rollout
                if group is not None:
                    row.group_id = group_number(rollout, group)
                    row.sample = siblings.next(row.group_id)
                yield row


def _load(file: Path, log: ImportLog) -> tuple[int | None, Sequence[Mapping[str, Any]]]:
    try:
        import torch
    except ImportError as error:
        raise InvalidInputError(
            "slime's files need the package torch: pip install torch"
        ) from error
    log.files += 1
    log.advance(file.stat().st_size)
    try:
        data = torch.load(file, map_location="cpu", weights_only=False)
        rollout, samples = data["rollout_id"], list(data["samples"])
    except Exception as error:  # a pickle can raise anything
        log.bad(file, "the whole file", f"{type(error).__name__}: {error}")
        return None, []
    return (int(rollout) if rollout is not None else number_in(file, _FILES)), samples


def _row(sample: Mapping[str, Any], log: ImportLog) -> RunRow:
    prompt = sample["prompt"]
    text = prompt if isinstance(prompt, str) else msgspec.json.encode(prompt).decode()
    status = str(sample["status"])
    inputs = sample.get("multimodal_inputs") or {}
    row = RunRow(
        prompt_tokens=len(sample["tokens"]) - int(sample["response_length"]),
        truncated=status == "truncated",
        censored=status in _CUT_OFF,
        weight_version=_oldest(sample.get("weight_versions") or []),
        images=len(inputs.get("images") or []),
    )
    if row.prompt_tokens is not None and row.prompt_tokens < 0:
        raise ValueError("response_length is more than there are tokens")
    row.name_prompt(name_of_text(text))
    reward = sample["reward"]
    if isinstance(reward, dict):
        log.assume("rewards that are named parts are left out: which of them counts is not logged")
    elif reward is not None:
        row.reward = float(reward)
    spans = _spans(sample)
    if spans:
        _time(row, spans)
    if row.generated_tokens is None:
        mask = sample.get("loss_mask")
        row.generated_tokens = int(sample["response_length"] if mask is None else sum(mask))
        log.assume(
            "without traced requests, the model wrote what the loss counts, "
            "or where there is no loss mask the whole response"
        )
    return row


def _oldest(versions: Sequence[Any]) -> int | None:
    numbers = [int(version) for version in versions if str(version).isdecimal()]
    return min(numbers) if numbers and len(numbers) == len(versions) else None


def _spans(sample: Mapping[str, Any]) -> list[_Span]:
    """The finished requests, in order."""
    events = (sample.get("trace") or {}).get("events") or []
    own = [event for event in events if event.get("name") in _REQUESTS]
    starts = {event["span_id"]: event for event in own if event["type"] == "span_start"}
    found = []
    for event in own:
        if event["type"] == "span_end" and event["span_id"] in starts:
            start = starts[event["span_id"]]
            attrs = event.get("attrs") or {}
            found.append(
                _Span(
                    float(start["ts"]),
                    float(event["ts"]),
                    attrs.get("completion_tokens"),
                    attrs.get("prompt_tokens"),
                    (start.get("attrs") or {}).get("max_new_tokens"),
                    attrs.get("finish_reason") == "abort",
                )
            )
    return sorted(found)


def _time(row: RunRow, spans: list[_Span]) -> None:
    """An aborted request and the one that continues it are one turn."""
    row.started_s, row.ended_s = spans[0].start, max(span.end for span in spans)
    row.max_new_tokens = spans[0].cap
    tokens = [span.tokens for span in spans if span.tokens is not None]
    row.turn_wait_s = [
        max(0.0, after.start - before.end)
        for before, after in pairwise(spans)
        if not before.aborted
    ]
    row.turns = len(row.turn_wait_s) + 1
    begun = [spans[0], *(after for before, after in pairwise(spans) if not before.aborted)]
    contexts = [span.context for span in begun if span.context is not None]
    if len(contexts) == len(begun):
        row.turn_prompt_tokens = contexts
    if len(tokens) == len(spans):
        row.generated_tokens = sum(tokens)
        row.turn_tokens = [0]
        for span, count in zip(spans, tokens, strict=True):
            row.turn_tokens[-1] += count
            if not span.aborted and span is not spans[-1]:
                row.turn_tokens.append(0)


PLUGIN: type[Importer] = Slime
