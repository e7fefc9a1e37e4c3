"""TRL is loaded once, before warnings are errors: it warns of a vLLM newer than it knows."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import trl.experimental.async_grpo
    import trl.generation.vllm_generation  # noqa: F401
