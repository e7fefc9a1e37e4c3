"""Batched sampling with a key-value cache, for evaluation and tests without an inference engine.

All rows stand at the same position: a row still inside its prompt reads its next prompt token, the
others read the token they drew last. Prompts differ by a few tokens only, so little work is lost,
and neither padding nor per-row positions are needed. Rows that have ended are dropped from the
cache whenever less than three quarters are alive, which keeps the long tail cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steersman.examples.signs.model import KeyValueCache, SignsModel
from steersman.examples.signs.task import EOS_ID

SAMPLING_ROWS = 256
"""Sequences sampled together; the cache of 256 rows of 400 tokens takes 240 MB."""
COMPACT_BELOW = 0.75
"""Share of live rows under which the cache is compacted; each compaction copies what it keeps."""


@dataclass
class Generation:
    """A sampled response, with `<eos>` if it stopped by itself, and its log-probabilities."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False


def sample(
    model: SignsModel, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seed: int
) -> list[Generation]:
    """One response to each prompt, at temperature 1, in the order of the prompts."""
    generator = torch.Generator().manual_seed(seed)
    generations: list[Generation] = []
    for start in range(0, len(prompts), SAMPLING_ROWS):
        rows = prompts[start : start + SAMPLING_ROWS]
        generations += _sample_rows(model, rows, max_new_tokens, generator)
    return generations


@torch.no_grad()
def _sample_rows(
    model: SignsModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    generator: torch.Generator,
) -> list[Generation]:
    generations = [Generation() for _ in prompts]
    alive = list(range(len(prompts)))
    capacity = max(map(len, prompts)) + max_new_tokens
    cache = KeyValueCache(model.shape, len(prompts), capacity)
    read = [prompt[0] for prompt in prompts]
    while not all(_ended(generations[i], max_new_tokens) for i in alive):
        states = model.hidden_states(torch.tensor(read)[:, None], cache)
        drawn, logprobs = _draw(model.logits(states[:, 0]), generator)
        for row, i in enumerate(alive):
            if cache.length < len(prompts[i]):
                read[row] = prompts[i][cache.length]
            elif not _ended(generations[i], max_new_tokens):
                read[row] = drawn[row]
                _record(generations[i], drawn[row], logprobs[row])
        live = [r for r, i in enumerate(alive) if not _ended(generations[i], max_new_tokens)]
        if len(live) < COMPACT_BELOW * len(alive):
            cache.keep(torch.tensor(live, dtype=torch.long))
            alive, read = [alive[row] for row in live], [read[row] for row in live]
    return generations


def _draw(logits: Tensor, generator: torch.Generator) -> tuple[list[int], list[float]]:
    """A token per row, and its log-probability."""
    logprobs = logits.log_softmax(-1)
    drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)
    return drawn[:, 0].tolist(), logprobs.gather(1, drawn)[:, 0].tolist()


def _record(generation: Generation, token: int, logprob: float) -> None:
    generation.tokens.append(token)
    generation.logprobs.append(logprob)
    generation.finished = token == EOS_ID


def _ended(generation: Generation, max_new_tokens: int) -> bool:
    return generation.finished or len(generation.tokens) >= max_new_tokens
