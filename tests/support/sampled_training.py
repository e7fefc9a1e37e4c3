"""A trainer that takes batches of a DataLoader in the order of the prompt sampler.

As a program (`python -m support.sampled_training FILE WORKERS`) it trains for two epochs, writes a
checkpoint after every batch, and goes on from the file where there is one.  Before and after each
checkpoint it says so and waits for a line, so that it can be killed at a known place.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from steersman.controller.prompts.chooser import PromptChooser
from steersman.controller.prompts.torch_sampler import PromptSampler
from steersman.policies.prompts.prompt_value import PromptValue

BATCH = 4


def chooser() -> PromptChooser:
    return PromptChooser(PromptValue(), group_size=4, max_new_tokens=60)


def reward(index: int, version: int) -> float:
    """Of some sample: a fixed coin."""
    return float(np.random.default_rng((index, version)).random() < 0.3 + 0.4 * (index % 3 == 0))


class Indices(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Training:
    """`run` an epoch, or some batches of it."""

    def __init__(
        self, ids: list[str], workers: int, loader: type[Any] = DataLoader, **options: Any
    ) -> None:
        self.ids = ids
        self.sampler = PromptSampler(chooser(), ids, prompts_per_draw=BATCH)
        self.loader = loader(
            Indices(len(ids)),
            batch_size=BATCH,
            sampler=self.sampler,
            num_workers=workers,
            **options,
        )
        self.taken = self.version = 0
        """`taken`: prompts since the loop began."""

    def batches(self) -> Any:
        """The rest of the epoch."""
        self.taken = 0
        for batch in self.loader:
            indices = batch.tolist()
            self.version += 1
            for index in indices:
                rewards = [reward(index, self.version * 8 + k) for k in range(4)]
                self.sampler.observe(self.ids[index], rewards, self.version)
            self.taken += len(indices)
            yield indices

    def run(self, batches: int | None = None) -> list[int]:
        taken: list[int] = []
        if batches == 0:
            return taken
        for number, indices in enumerate(self.batches(), 1):
            taken += indices
            if number == batches:
                break
        return taken

    def state(self) -> dict[str, Any]:
        return {
            "sampler": self.sampler.state_dict(self.taken),
            "version": self.version,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.taken, self.version = 0, state["version"]

    def state_bytes(self) -> str:
        state = self.sampler.state_dict()
        return json.dumps(state, default=lambda value: value.tolist(), sort_keys=True)


def main(path: Path, workers: int) -> None:
    training = Training([f"p{i}" for i in range(23)], workers)
    consumed: list[list[int]] = [[]]
    if path.exists():
        saved = torch.load(path, weights_only=False)
        training.load(saved)
        consumed = saved["consumed"]
    while True:
        for indices in training.batches():
            consumed[-1] += indices
            batches = sum(-(-len(c) // BATCH) for c in consumed)
            ask(["taken", batches])
            save(path, training, consumed)
            ask(["saved", batches])
        if len(consumed) == 2:
            save(path, training, consumed)
            return
        consumed.append([])


def say(what: Any) -> None:
    """A line for whoever started this program."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def ask(what: Any) -> None:
    """Say it, and wait for the answer."""
    say(what)
    sys.stdin.readline()


def save(path: Path, training: Training, consumed: list[list[int]]) -> None:
    state = {**training.state(), "consumed": consumed, "state_bytes": training.state_bytes()}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
