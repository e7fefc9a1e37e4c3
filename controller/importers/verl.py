"""verl: the folder named by `trainer.rollout_data_dir`, one `{step}.jsonl` per step.

As written by verl 0.9.1, `verl/trainer/ppo/v1/trainer_base.py` (`PPOTrainer._log_rollout_data`,
`_write_generations`) and, for the older trainers, `verl/trainer/ppo/ray_trainer.py`.  One line a
sample: `input` and `output` (text without special tokens), `score` (sum of its token rewards),
`step`, `gts`; from the V1 trainers also `uid` = `{prompt uid}_{session}_{output}`, from the older
ones whatever the reward function returned.

Lacks: lengths, caps, times, weight versions, replicas, turns; what was filtered out or aborted is
not in it at all.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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

_FILES = re.compile(r"/(\d+)\.jsonl(?:\.gz)?$")
_UID = re.compile(r"(.+)_\d+_\d+")


class _Record(msgspec.Struct):
    input: str
    output: str
    score: float
    step: int
    uid: str | None = None


@dataclass(frozen=True)
class Verl:
    """verl's rollout dump."""

    tokenizer: str
    """Folder with the model's tokenizer.json."""

    def files(self, path: Path) -> list[Path]:
        """By step."""
        return find(path, _FILES, "rollout dump of verl ({step}.jsonl)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per line."""
        return counted(self._texts(files, log), self.tokenizer, log)

    def _texts(self, files: Sequence[Path], log: ImportLog) -> Iterator[tuple[RunRow, str, str]]:
        for file in files:
            siblings = Siblings()  # a group never leaves its step
            for _, record in records(file, _Record, log):
                row = RunRow(step=record.step, reward=record.score)
                prompt = name_of_text(record.input)
                row.name_prompt(prompt)
                named = _UID.fullmatch(record.uid or "")
                if not named:
                    log.assume("groups are the records of one step with equal prompts")
                row.group_id = group_number(record.step, named[1] if named else prompt)
                row.sample = siblings.next(row.group_id)
                yield row, record.input, record.output


PLUGIN: type[Importer] = Verl
