"""ROLL: the folder named by `rollout_dump_dir`, one `rollout_dump_data.step_{step}.jsonl` per step.

As written by ROLL (github.com/alibaba/ROLL at 8eb27cc), `roll/pipeline/rlvr/utils.py`
(`dump_rollout_to_specific_path`, `write_to_json_process`): a single line, an object of columns that
are as long as the step has samples.  Of those, `global_step`, `responses` (text without special
tokens) and `scores` are always there; `id`, `prompt`, `messages`, `domain` if the data set has
them; `sampling_params` is the batch's `meta_info` as JSON, sometimes with a `generation_config`.

Lacks: lengths, groups, times, weight versions, replicas, turns.  A step's line is held in memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from steersman.controller.importers._files import find, records
from steersman.controller.importers._importer import (
    Importer,
    Siblings,
    group_number,
    name_of_text,
)
from steersman.controller.importers._text import counted
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow

_FILES = re.compile(r"/rollout_dump_data\.step_(\d+)\.jsonl(?:\.gz)?$")


class _Step(msgspec.Struct):
    global_step: list[int]
    responses: list[str]
    scores: list[float]
    id: list[Any] | None = None
    prompt: list[Any] | None = None
    messages: list[Any] | None = None
    domain: list[Any] | None = None
    sampling_params: list[Any] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            column = getattr(self, name)
            if column is not None and len(column) != len(self.responses):
                raise ValueError(
                    f"{name} has {len(column)} entries, responses {len(self.responses)}"
                )


class _Params(msgspec.Struct):
    generation_config: dict[str, Any] = {}


@dataclass(frozen=True)
class Roll:
    """ROLL's rollout dump of RLVR pipelines."""

    tokenizer: str
    """Folder with the model's tokenizer.json."""

    def files(self, path: Path) -> list[Path]:
        """By step."""
        return find(path, _FILES, "rollout dump of ROLL (rollout_dump_data.step_{step}.jsonl)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per entry of the columns."""
        return counted(self._texts(files, log), self.tokenizer, log)

    def _texts(self, files: Sequence[Path], log: ImportLog) -> Iterator[tuple[RunRow, str, str]]:
        log.assume("groups are the entries of one step with equal id (or prompt) and domain")
        for file in files:
            siblings = Siblings()
            for number, step in records(file, _Step, log):
                prompts = step.prompt or step.messages
                if prompts is None:
                    log.bad(file, f"line {number}", "has neither prompt nor messages")
                    continue
                for i, answer in enumerate(step.responses):
                    prompt = _plain(prompts[i])
                    row = RunRow(step=step.global_step[i], reward=step.scores[i])
                    name = str(step.id[i]) if step.id else name_of_text(prompt)
                    row.name_prompt(f"{step.domain[i]}/{name}" if step.domain else name)
                    row.group_id = group_number(row.step, row.prompt_id)
                    row.sample = siblings.next(row.group_id)
                    if step.sampling_params:
                        row.max_new_tokens = _cap(str(step.sampling_params[i]))
                    yield row, prompt, answer


def _plain(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else msgspec.json.encode(prompt).decode()


@lru_cache(maxsize=8)  # the same text stands in every entry of a step
def _cap(params: str) -> int | None:
    """`generation_config.max_new_tokens`, where it was written along."""
    try:
        config = msgspec.json.decode(params, type=_Params).generation_config
    except msgspec.MsgspecError:
        return None
    cap = config.get("max_new_tokens")
    return cap if isinstance(cap, int) and cap > 0 else None


PLUGIN: type[Importer] = Roll
