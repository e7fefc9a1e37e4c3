"""What TRL gives an adapter, as far as it is used: settings, a data set, a tokenizer, a reward."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class FakeArguments:
    """Fields of `AsyncGRPOConfig`, with small values."""

    num_generations: int = 4
    max_completion_length: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    chat_template_kwargs: dict[str, Any] | None = None
    max_inflight_tasks: int = 8
    queue_maxsize: int = 64
    max_staleness: int = 2
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    world_size: int = 1
    request_timeout: int = 20
    seed: int = 3
    generation_kwargs: dict[str, Any] | None = None
    vllm_server_base_url: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


class FakeTokenizer:
    """Words are numbers."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> list[int]:
        """The last message, with 1 before it where an answer is to follow."""
        ids = [int(word) for word in conversation[-1]["content"].split()]
        return [1, *ids] if options.get("add_generation_prompt") else ids

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """Numbers as words."""
        return " ".join(str(token) for token in token_ids)

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Of a plain text."""
        return {"input_ids": [int(word) for word in text.split()]}


def rows(count: int) -> list[dict[str, Any]]:
    """A data set of messages."""
    return [
        {"prompt": [{"role": "user", "content": f"2 {30 + i}"}], "answer": 7 + i % 2}
        for i in range(count)
    ]


def share_of_answer(
    completion_ids: Sequence[Sequence[int]], answer: Sequence[int], **_: Any
) -> list[float]:
    """1 if a sample begins with the word that its row wants."""
    return [float(ids[0] == word) for ids, word in zip(completion_ids, answer, strict=True)]


def tensors() -> list[tuple[str, Any]]:
    """A model with tied embeddings."""
    import torch

    table = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return [("embed.weight", table), ("head.weight", table), ("norm.weight", torch.ones(3))]


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """As an array."""
    return np.array(values, dtype=np.float64)
