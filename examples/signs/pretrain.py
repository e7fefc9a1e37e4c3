"""The start of reinforcement: imitate the demonstrator, once, and keep the result on disk.

AdamW on fresh demonstrations, bucketed by length into batches of 1024 padded tokens; the learning
rate warms up and falls linearly. Signs are drawn blindly, so most of the loss cannot be learnt
away; the two verdict words, which decide the reward, count threefold. What is left for
reinforcement is behaviour (claiming success after a miss), not a missing skill: starts that could
not subtract or could not copy the target did not improve under reinforcement at any learning rate.

The folder's name carries a hash of the recipe, the seed and the vocabulary, so a checkpoint of
another recipe is never picked up. It is written beside its final place and renamed, so it is
either whole or absent; of two processes that train at once the first to finish wins, and both
return the same folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from steersman.examples.signs.model import (
    Batch,
    Shape,
    SignsModel,
    bucket_by_length,
    export_hf,
    response_logits,
)
from steersman.examples.signs.task import (
    CLAIM_ID,
    MISS_ID,
    VOCABULARY,
    Demonstrator,
    demonstrate,
    draw_problem,
    prompt_tokens,
)

Progress = Callable[[int, int, float], None]
"""Told the step, the number of steps and the loss of that step."""

RECIPE_VERSION = 1
"""Raised when the training code changes in a way that the fields of `Recipe` do not show."""
DEMONSTRATIONS_PER_CHUNK = 4096
"""Demonstrations sorted by length together; they make about 200 batches."""


@dataclass(frozen=True)
class Recipe:
    """How the start is trained; the defaults take about 100 s of one core."""

    steps: int = 2400
    """Batches; fewer leave slips in the arithmetic, which reinforcement hardly mends."""
    batch_tokens: int = 1024
    """Padded tokens a batch; 2048 in 1500 steps solved .37 of held-out problems instead of .45."""
    learning_rate: float = 4e-3
    warmup_steps: int = 100
    final_share: float = 0.05
    """Learning rate of the last step as a share of the highest."""
    verdict_weight: float = 3.0
    """Loss weight of `x` and `ok`; every other response token weighs 1."""
    max_tokens: int = 768
    """Longest demonstration, prompt included; 1 in 300 is longer and is left out."""
    unsolvable_share: float = 0.2
    """Share of demonstrations of unsolvable problems, as in the default training pool."""
    demonstrator: Demonstrator = field(default_factory=Demonstrator)
    shape: Shape = field(default_factory=Shape)


def pretrained(
    cache_dir: Path | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    recipe: Recipe = Recipe(),
) -> Path:
    """Folder of the pretrained model in Hugging Face's layout; trains it if the cache has none.

    Parameters
    ----------
    cache_dir : holds one folder per recipe; default `$STEERSMAN_CACHE`, else `~/.cache/steersman`.
    seed : initial weights and demonstrations.
    progress : called after every step of training; never called when the cache answers.
    recipe : what to train.
    """
    folder = checkpoint_folder(cache_dir, seed=seed, recipe=recipe)
    if not folder.is_dir():
        model = train(recipe, seed=seed, progress=progress)
        _publish(model, recipe, folder)
    return folder


def checkpoint_folder(
    cache_dir: Path | None = None, *, seed: int = 0, recipe: Recipe = Recipe()
) -> Path:
    """Where `pretrained` keeps this recipe's checkpoint; it exists if and only if it is whole."""
    root = cache_dir or Path(
        os.environ.get("STEERSMAN_CACHE") or Path.home() / ".cache" / "steersman"
    )
    identity = json.dumps(
        [RECIPE_VERSION, dataclasses.asdict(recipe), seed, VOCABULARY], sort_keys=True
    )
    return root / f"signs-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def train(recipe: Recipe, *, seed: int = 0, progress: Progress | None = None) -> SignsModel:
    """A model that imitates the demonstrator."""
    model = SignsModel(recipe.shape, seed=seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.05
    )
    batches = _batches(recipe, np.random.default_rng(seed))
    for step in range(1, recipe.steps + 1):
        optimizer.param_groups[0]["lr"] = _learning_rate(recipe, step)
        loss = _imitation_loss(model, next(batches), recipe.verdict_weight)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if progress is not None:
            progress(step, recipe.steps, loss.item())
    return model


def _learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then linear to `final_share`; steps count from 1."""
    if step <= recipe.warmup_steps:
        return recipe.learning_rate * step / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / (recipe.steps - recipe.warmup_steps)
    return recipe.learning_rate * (1 - done * (1 - recipe.final_share))


def _imitation_loss(model: SignsModel, batch: Batch, verdict_weight: float) -> Tensor:
    """Weighted mean of the negative log-likelihood of the response tokens, in nats."""
    targets = batch.targets()
    verdicts = (targets == MISS_ID) | (targets == CLAIM_ID)
    weights = torch.where(verdicts, verdict_weight, 1.0)
    losses = F.cross_entropy(response_logits(model, batch), targets, reduction="none")
    return (losses * weights).sum() / weights.sum()


def _batches(recipe: Recipe, rng: np.random.Generator) -> Iterator[Batch]:
    """Fresh demonstrations for ever."""
    while True:
        chunk = [_demonstration(recipe, rng) for _ in range(DEMONSTRATIONS_PER_CHUNK)]
        chunk = [pair for pair in chunk if len(pair[0]) <= recipe.max_tokens]
        buckets = bucket_by_length([len(sequence) for sequence, _ in chunk], recipe.batch_tokens)
        for b in rng.permutation(len(buckets)):
            yield Batch.of(*zip(*(chunk[i] for i in buckets[b]), strict=True))


def _demonstration(recipe: Recipe, rng: np.random.Generator) -> tuple[list[int], int]:
    """Prompt and response of a problem that is not held out, and the prompt's length."""
    while True:
        problem = draw_problem(rng, solvable=bool(rng.random() >= recipe.unsolvable_share))
        if not problem.held_out:
            prompt = prompt_tokens(problem)
            return prompt + demonstrate(problem, rng, recipe.demonstrator), len(prompt)


def _publish(model: SignsModel, recipe: Recipe, folder: Path) -> None:
    """Put the checkpoint in its place in one step, unless another process was first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        export_hf(model, scratch)
        (scratch / "recipe.json").write_text(
            json.dumps(dataclasses.asdict(recipe), indent=2) + "\n", encoding="utf-8"
        )
        scratch.chmod(0o755)  # mkdtemp's folder is private
        scratch.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
