"""What is read inside the process of an engine, vLLM's `AsyncLLM`, by whoever is let in there.

It may run on a thread beside the engine's event loop: it reads copies and changes nothing.
"""

from typing import Any, NamedTuple

from steersman.mechanisms.leases.lease import EngineReading


class Limits(NamedTuple):
    """Of an engine, for life; 0: unknown."""

    max_num_seqs: int
    max_model_len: int
    kv_capacity_tokens: int


def limits_of(engine: Any) -> Limits:
    """As it is configured."""
    config = engine.vllm_config
    blocks = config.cache_config.num_gpu_blocks or 0
    return Limits(
        config.scheduler_config.max_num_seqs,
        config.model_config.max_model_len,
        blocks * config.cache_config.block_size,
    )


def reading_of(
    engine: Any, *, paused: bool = False, weight_version: int | None = None
) -> EngineReading:
    """How far its requests have come, by the ids that they were given."""
    tokens: dict[str, int] = {}
    context_tokens = 0
    states = list(engine.output_processor.request_states.values())
    for state in states:
        written = state.detokenizer.num_output_tokens() if state.detokenizer is not None else 0
        context_tokens += state.prompt_len + written
        tokens[getattr(state, "external_req_id", state.request_id)] = written
    return EngineReading(tokens, len(states), context_tokens, paused, weight_version)
