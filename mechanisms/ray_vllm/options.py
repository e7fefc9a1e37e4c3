"""How an engine is set up, and the environment its process needs.

The environment is given to the replica's process only.  On CPU it also removes what would make a
small engine slow: compiling (the first request with log-probabilities took 30 s) and threads that
fight for few cores.  On GPU vLLM's own defaults stand.
"""

from pathlib import Path
from typing import Any

import msgspec

from steersman.estimators.errors import InvalidInputError

CPU_BLOCK_SIZE = 32
"""vLLM's CPU attention takes multiples of 32 only; its default of 128 makes prefix hits rare."""
CPU_KV_CACHE_BYTES = 128 << 20
"""KV cache on CPU if nothing is asked for: 128 k tokens of the demo's model."""

MOST_DRAFT_TOKENS = 128
"""vLLM's verifier takes no more (its MAX_SPEC_LEN)."""
PROPOSER = "steersman.mechanisms.ray_vllm.proposer.StoreProposer"


class EngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of every engine of a fleet; None leaves the choice to vLLM or the device."""

    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool | None = None
    """None: yes on CPU, no on GPU."""
    enable_prefix_caching: bool = True
    scheduling_policy: str = "priority"
    """With "fcfs" the engine ignores priorities without a word."""
    draft_tokens: int = 0
    """Most tokens the engine can be told to draft per sequence and iteration; until it is told to
    it drafts none.  0: it is set up without speculation."""
    draft_store_tokens: int = 1 << 20
    """Tokens of earlier trajectories that each machine keeps to draft from."""
    extra: dict[str, Any] = {}
    """Passed to vLLM's `AsyncEngineArgs` as they are; wins over the fields above."""

    def __post_init__(self) -> None:
        if not 0 <= self.draft_tokens <= MOST_DRAFT_TOKENS:
            raise InvalidInputError(
                f"draft_tokens is {self.draft_tokens}; valid: 0 to {MOST_DRAFT_TOKENS}"
            )
        if self.draft_store_tokens < 1:
            raise InvalidInputError(
                f"draft_store_tokens is {self.draft_store_tokens}; valid: 1 or more"
            )

    def engine_args(self, model: str, on_gpu: bool) -> dict[str, Any]:
        """Keyword arguments for `AsyncEngineArgs`."""
        asked: dict[str, Any] = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not None
        }
        extra = asked.pop("extra")
        draft_tokens = asked.pop("draft_tokens")
        del asked["draft_store_tokens"]
        if draft_tokens:
            asked["speculative_config"] = {
                "method": "custom_class",
                "model": PROPOSER,
                "num_speculative_tokens": draft_tokens,
            }
        asked.setdefault("enforce_eager", not on_gpu)
        if not on_gpu:
            asked.setdefault("block_size", CPU_BLOCK_SIZE)
            asked.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
        return {
            "model": model,
            "skip_tokenizer_init": True,
            # Sampling is the caller's alone: a model's generation_config.json must not add to it.
            "generation_config": "vllm",
            **asked,
            **extra,
        }


class ReplicaSpec(msgspec.Struct, frozen=True):
    """Everything a replica's process is told when it starts."""

    name: str
    pool: str
    model: str
    """Folder, or a name that vLLM can resolve."""
    engine: EngineOptions
    num_gpus: float = 0.0
    weight_version: int = 0
    """Version of the weights in the model folder."""
    seed: int = 0
    """Of the engine's own random stream, which requests without a seed draw from.  It must differ
    between replicas: vLLM's default of 0 on each makes equal prompts on two replicas draw equal
    numbers, so that samples of one group are copies of each other in part."""


def process_environment(spec: ReplicaSpec) -> dict[str, str]:
    """Environment of the replica's process."""
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if Path(spec.model).is_absolute():
        environment["HF_HUB_OFFLINE"] = "1"
    if spec.num_gpus == 0:
        environment |= {
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # The engine's core runs the model itself: one process fewer per replica.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    return environment
