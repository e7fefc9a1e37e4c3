"""A random Llama small enough to start in a blink, whose greedy output still varies."""

from pathlib import Path

import torch

from steersman.mechanisms.fleet import Fleet
from steersman.mechanisms.simulated.profile import HardwareProfile

VOCABULARY = 64


def random_llama(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Write a checkpoint: 2 layers x 64, 2 heads of 32 (vLLM's smallest), untied.

    With the usual initial deviation of 0.02 greedy output is one token for ever.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    return folder


def unmeasured(fleet: Fleet, max_num_seqs: int) -> HardwareProfile:
    """Names and limits of the test's replicas, for a measurement to put the times in."""
    return HardwareProfile(
        name="tiny",
        gpu="cpu",
        model="random",
        tensor_parallel=1,
        fixed_s=1.0,
        sequence_s=0.0,
        token_s=0.0,
        prefill_token_s=0.0,
        kv_capacity_tokens=fleet.replicas[0].kv_capacity_tokens,
        max_num_seqs=max_num_seqs,
    )
