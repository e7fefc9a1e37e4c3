"""Batched sampling with a key-value cache, for evaluation and studies without an inference engine.

All rows stand at the same position: a row still inside its prompt reads its next prompt token, the
others read the token they drew last. Prompts differ by a few tokens only, so little work is lost,
and neither padding nor per-row positions are needed. Rows that have ended are dropped from the
cache whenever less than nine tenths are alive, which keeps the long tail cheap.

A token is drawn by inverting the distribution function at a number that belongs to its row and its
place in the response (common random numbers). What a row becomes depends neither on the others nor
on how they are batched, and two models that hardly differ give mostly the same answers, so that
their difference is measured with less noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from steersman.examples.signs.model import KeyValueCache, SignsModel
from steersman.examples.signs.task import EOS_ID

SAMPLING_ROWS = 256
"""Sequences sampled together; more are no faster, and 256 rows of 400 tokens take 240 MB."""
COMPACT_BELOW = 0.9
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
        uniforms = torch.rand((len(rows), max_new_tokens), generator=generator)
        generations += _sample_rows(model, rows, uniforms)
    return generations


@torch.no_grad()
def _sample_rows(
    model: SignsModel, prompts: Sequence[Sequence[int]], uniforms: Tensor
) -> list[Generation]:
    """`uniforms`: `[rows, most tokens]`, what each token of each response is drawn with."""
    max_new_tokens = uniforms.shape[1]
    generations = [Generation() for _ in prompts]
    starts = torch.tensor([len(prompt) for prompt in prompts])
    alive = list(range(len(prompts)))
    cache = KeyValueCache(model.shape, len(prompts))
    read = [prompt[0] for prompt in prompts]
    while not all(_ended(generations[i], max_new_tokens) for i in alive):
        states = model.hidden_states(torch.tensor(read)[:, None], cache)
        place = (cache.length - starts[alive]).clamp(0, max_new_tokens - 1)
        drawn, logprobs = _draw(model.logits(states[:, 0]), uniforms[alive, place])
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


def _draw(logits: Tensor, uniform: Tensor) -> tuple[list[int], list[float]]:
    """A token per row, and its log-probability."""
    logprobs = logits.log_softmax(-1)
    reached = logprobs.exp().cumsum(-1)
    # rounding leaves the last sum a little off 1
    drawn = torch.searchsorted(reached, uniform[:, None] * reached[:, -1:], right=True)
    drawn = drawn.clamp(max=logits.shape[-1] - 1)
    return drawn[:, 0].tolist(), logprobs.gather(1, drawn)[:, 0].tolist()


def _record(generation: Generation, token: int, logprob: float) -> None:
    generation.tokens.append(token)
    generation.logprobs.append(logprob)
    generation.finished = token == EOS_ID


def _ended(generation: Generation, max_new_tokens: int) -> bool:
    return generation.finished or len(generation.tokens) >= max_new_tokens
