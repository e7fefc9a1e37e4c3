"""Tokens of KV cache that fit beside a model, derived from public facts.

    capacity = (GPUS * (UTILIZATION * memory - RESERVED) - weights) / kv_bytes
    weights = parameters * 2,  kv_bytes = 2 (key, value) * layers * kv_heads * head_dim * 2

in bytes, both in bfloat16.  Tensor parallelism splits weights and KV heads evenly (every model here
has at least as many KV heads as GPUs are used).  Derived, not measured: an engine that profiles its
own memory ends within a few percent of it on large GPUs.
"""

from dataclasses import dataclass

UTILIZATION = 0.9
"""vLLM's default `gpu_memory_utilization`."""
RESERVED_BYTES = 2 << 30
"""Per GPU: activations of the largest step, CUDA graphs and communication buffers.  Assumed."""
ELEMENT_BYTES = 2

MIB = 1 << 20
GPU_MEMORY_BYTES = {
    "a100_sxm": 81_920 * MIB,
    "h100_sxm": 81_559 * MIB,
    "h200_sxm": 143_771 * MIB,
    "h20_sxm": 97_871 * MIB,
    "b200_sxm": 183_359 * MIB,
    "l40s": 46_068 * MIB,
}
"""As the driver reports it; the A100 is the one of 80 GB."""


@dataclass(frozen=True)
class ModelShape:
    """The facts of a model's public configuration that memory depends on."""

    parameters: float
    """Tied embeddings counted once, as the engine holds them."""
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> float:
        """Of the whole model."""
        return self.parameters * ELEMENT_BYTES

    @property
    def kv_bytes(self) -> int:
        """Of one token's keys and values, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ELEMENT_BYTES


MODELS = {
    "Qwen/Qwen2.5-1.5B": ModelShape(1.54e9, 28, 2, 128),
    "Qwen/Qwen3-0.6B": ModelShape(0.596e9, 28, 8, 128),
    "Qwen/Qwen3-1.7B": ModelShape(1.72e9, 28, 8, 128),
    "Qwen/Qwen3-8B": ModelShape(8.19e9, 36, 8, 128),
    "Qwen/Qwen3-30B-A3B": ModelShape(30.5e9, 48, 4, 128),
    "Qwen/Qwen3-32B": ModelShape(32.8e9, 64, 8, 128),
    "meta-llama/Meta-Llama-3.1-8B": ModelShape(8.03e9, 32, 8, 128),
    "meta-llama/Meta-Llama-3.1-70B": ModelShape(70.6e9, 80, 8, 128),
}


def kv_capacity_tokens(gpu: str, model: str, tensor_parallel: int) -> int | None:
    """Tokens; 0 or less if the model does not fit, None if the facts of either are not known."""
    if gpu not in GPU_MEMORY_BYTES or model not in MODELS:
        return None
    shape = MODELS[model]
    usable = tensor_parallel * (UTILIZATION * GPU_MEMORY_BYTES[gpu] - RESERVED_BYTES)
    return int((usable - shape.weight_bytes) // shape.kv_bytes)
