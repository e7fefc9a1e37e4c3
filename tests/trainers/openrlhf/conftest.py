"""One Ray, and two of OpenRLHF's engine actors around real vLLM engines on CPU."""

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": os.pathsep.join([str(TESTS), str(HERE)]),
    "STEERSMAN_PLACEMENT__NAME": "moving:Moving",
    "STEERSMAN_GUARD__MAX_MOVES_PER_TICK": "64",
    "STEERSMAN_GUARD__MOVE_COOLDOWN_S": "0",
    "STEERSMAN_TICK_S": "0.1",
}

sys.path.insert(0, str(HERE))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openrlhf.trainer.ray.vllm_engine  # noqa: F401


@pytest.fixture(scope="session")
def environment() -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=bool(os.environ.get("VERBOSE")),
        runtime_env={"env_vars": ENVIRONMENT},
    )
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engines' random Llama, with a tokenizer of its 64 tokens."""
    from engine.models import VOCABULARY, random_llama
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = random_llama(tmp_path_factory.mktemp("model"))
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2}
    words |= {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def engines(environment: None, model: Path) -> list[Any]:
    """OpenRLHF's actors, with our executor in them."""
    import ray
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

    handles = [
        RolloutRayActor.options(num_cpus=0.1).remote(
            model=str(model),
            agent_func_path=str(HERE / "agent.py"),
            num_gpus=1,
            distributed_executor_backend="uni",
            dtype="float32",
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=32,
            kv_cache_memory_bytes=64 << 20,
            block_size=32,
            logprobs_mode="processed_logprobs",
        )
        for _ in range(2)
    ]
    ray.get([handle.get_num_unfinished_requests.remote() for handle in handles])
    return handles
