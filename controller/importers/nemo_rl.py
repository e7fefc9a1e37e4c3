"""NeMo-RL: the log folder of a GRPO or PPO run, one `train_data_step{step}.jsonl` per step.

As written by NeMo-RL (github.com/NVIDIA-NeMo/RL at 7ea279a), `nemo_rl/algorithms/grpo.py`
(`grpo_train`, `async_grpo_train`) through `nemo_rl/utils/logger.py`
(`Logger.log_batched_dict_as_jsonl`): one line a sample, a batch of one, so that every value is a
list of one: `rewards`, `input_lengths`, `token_ids` (padded), `token_loss_mask` (1: the model wrote
it), `content`, `advantages`, log-probabilities, and `idx`.

Lacks: groups, prompts' names, caps, truncation, times, weight versions, replicas.  Not written by
the single-controller trainer, nor where NeMo-Gym responses are logged.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec

from steersman.controller.importers._files import find, number_in, records
from steersman.controller.importers._importer import Importer, Neighbours, name_of_tokens
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow

_FILES = re.compile(r"/train_data_step(\d+)\.jsonl(?:\.gz)?$")
_One = msgspec.Meta(min_length=1, max_length=1)


class _Record(msgspec.Struct):
    rewards: Annotated[list[float], _One]
    input_lengths: Annotated[list[int], _One]
    token_ids: Annotated[list[list[int]], _One]
    token_loss_mask: Annotated[list[list[float]], _One]

    def __post_init__(self) -> None:
        lengths = self.input_lengths[0], len(self.token_ids[0]), len(self.token_loss_mask[0])
        if not 0 < lengths[0] <= lengths[1] == lengths[2]:
            raise ValueError(
                "input_lengths, token_ids, token_loss_mask: {}, {}, {}".format(*lengths)
            )


@dataclass(frozen=True)
class NemoRl:
    """NeMo-RL's training data log."""

    def files(self, path: Path) -> list[Path]:
        """By step."""
        return find(path, _FILES, "training data log of NeMo-RL (train_data_step{step}.jsonl)")

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """One per line."""
        log.assume(Neighbours.ASSUMED)
        log.assume("a turn is a run of tokens that the model wrote")
        groups = Neighbours()
        for file in files:
            step = number_in(file, _FILES)
            for number, record in records(file, _Record, log):
                length = record.input_lengths[0]
                contexts, turns = _turns(record.token_loss_mask[0][:length])
                if not turns:
                    log.bad(file, f"line {number}", "the model wrote none of its tokens")
                    continue
                before = contexts[0]
                row = RunRow(
                    step=step,
                    prompt_tokens=before,
                    generated_tokens=sum(turns),
                    reward=record.rewards[0],
                    turns=len(turns),
                    turn_tokens=turns,
                    turn_prompt_tokens=contexts,
                )
                row.name_prompt(name_of_tokens(record.token_ids[0][:before]))
                row.group_id, row.sample = groups.next((file, row.prompt_id))
                yield row


def _turns(mask: Sequence[float]) -> tuple[list[int], list[int]]:
    """Position and length of each run of tokens that the model wrote."""
    contexts, lengths = [], []
    position = 0
    for written, tokens in groupby(mask, key=bool):
        length = len(list(tokens))
        if written:
            contexts.append(position)
            lengths.append(length)
        position += length
    return contexts, lengths


PLUGIN: type[Importer] = NemoRl
