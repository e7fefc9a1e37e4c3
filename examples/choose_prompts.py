"""Prompts chosen by value in a plain torch training loop, with a checkpoint in mid-epoch.

The "language model" here is a table of pass rates: half of the prompts are never solved.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.utils.data import DataLoader

from steersman.controller.plugins import build
from steersman.controller.prompts.chooser import PromptChooser
from steersman.controller.prompts.torch_sampler import PromptSampler

DATASET = [f"question {i}" for i in range(400)]
PASS_RATE = np.where(np.arange(400) % 2 == 0, 0.0, np.linspace(0.1, 0.9, 400))
GROUP, BATCH = 8, 16
rng = np.random.default_rng(0)


def rollout_and_reward(prompt: str) -> list[float]:
    """Stands for what your trainer does."""
    return list(map(float, rng.random(GROUP) < PASS_RATE[DATASET.index(prompt)]))


def make_sampler() -> PromptSampler:
    policy = build("policies.prompts", "prompt_value", {})
    chooser = PromptChooser(policy, group_size=GROUP, max_new_tokens=512)
    return PromptSampler(chooser, DATASET, prompts_per_draw=BATCH, endless=True)


def train(sampler: PromptSampler, first_step: int, steps: int, checkpoint: Path) -> float:
    """Share of groups that teach: neither all right nor all wrong."""
    taught = consumed = 0
    loader = DataLoader[str](DATASET, BATCH, sampler=sampler)  # type: ignore[arg-type]
    for step, prompts in enumerate(loader, first_step):
        for prompt in prompts:
            rewards = rollout_and_reward(prompt)
            sampler.observe(prompt, rewards, weight_version=step)
            taught += min(rewards) < max(rewards)
        consumed += len(prompts)
        torch.save(sampler.state_dict(consumed), checkpoint)
        if step + 1 == first_step + steps:
            break
    return taught / (steps * BATCH)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "sampler.pt"
        first = train(make_sampler(), 0, 40, checkpoint)
        resumed = make_sampler()
        resumed.load_state_dict(torch.load(checkpoint, weights_only=False))
        then = train(resumed, 40, 40, checkpoint)
    print(f"groups that teach: {first:.0%} in the first 40 steps, {then:.0%} in the next 40")
