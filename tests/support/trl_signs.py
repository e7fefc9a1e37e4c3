"""The signs task for TRL: model with tokenizer, data set, reward; and TRL's trainer on a CPU.

`AsyncGRPOTrainer` packs its samples into trees and leaves attention to a CUDA kernel, and asks
torch what the GPU can do, for a figure that it logs.  All the rest of it runs on a CPU, so these
two alone are replaced; attention by the same computation in plain torch: per segment, queries see
the keys of their path, causal at its end.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from steersman.examples.signs.pretrain import pretrained
from steersman.examples.signs.task import (
    EOS_ID,
    VOCABULARY,
    Problem,
    decode,
    make_evaluation_pool,
    make_pool,
    prompt_tokens,
    reward,
)

TEMPLATE = "<bos> {{ messages[0]['content'] }}{% if add_generation_prompt %} :{% endif %}"
"""With it, `prompt_tokens` and the chat template give the same ids."""


def signs_model(folder: Path) -> Path:
    """The pretrained model with a tokenizer, as vLLM and TRL load it; in `folder`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    start = pretrained()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(start / name, folder / name)
    words = Tokenizer(models.WordLevel(dict(zip(VOCABULARY, range(256), strict=True)), "<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    return folder


def row_of(problem: Problem) -> dict[str, Any]:
    """A problem as a row of a data set."""
    words = decode(prompt_tokens(problem)).split()[1:-1]  # the template adds <bos> and ":"
    return {
        "prompt": [{"role": "user", "content": " ".join(words)}],
        "numbers": list(problem.numbers),
        "target": problem.target,
        "solvable": problem.solvable,
    }


def training_rows(size: int, unsolvable_share: float, seed: int) -> list[dict[str, Any]]:
    """Problems to train on."""
    return [row_of(problem) for problem in make_pool(size, unsolvable_share, seed)]


def held_out(size: int, seed: int) -> list[Problem]:
    """Problems that training never sees."""
    return make_evaluation_pool(size, seed)


def signs_reward(
    completion_ids: Sequence[Sequence[int]],
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    solvable: Sequence[bool],
    **_: Any,
) -> list[float]:
    """TRL's form of the task's reward."""
    problems = zip(numbers, target, solvable, strict=True)
    return [
        reward(Problem(tuple(n), t, s), ids, finished=ids[-1] == EOS_ID)
        for ids, (n, t, s) in zip(completion_ids, problems, strict=True)
    ]


class CpuFlash:
    """What TRL uses of the flash-attention kernel."""

    @staticmethod
    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = True,
        window_size: tuple[int, int] = (-1, -1),
    ) -> torch.Tensor:
        """(tokens, heads, width): the last query of a segment sees all keys of its path."""
        assert causal
        assert window_size == (-1, -1)
        starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        parts = []
        for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
            length, seen = b - a, d - c
            query, key, value = (x.transpose(0, 1) for x in (q[a:b], k[c:d], v[c:d]))
            mask = torch.ones(length, seen, dtype=torch.bool).tril(seen - length)
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=softmax_scale
            )
            parts.append(out.transpose(0, 1))
        return torch.cat(parts)


def without_cuda() -> None:
    """Let `AsyncGRPOTrainer` run here: its attention in plain torch, no question what the GPU can
    do."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    packing._flash_attn = lambda: CpuFlash
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None


def written(told: dict[str, Any], path: Path) -> None:
    """As JSON, whole or not at all."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(told))
    scratch.replace(path)
