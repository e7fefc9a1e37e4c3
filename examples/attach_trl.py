"""TRL's `AsyncGRPOTrainer` through a gateway: lines that end in `# steersman` are what changes.

Start vLLM as TRL wants it, as many servers as there are GPUs for, and the gateway in front:

    VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen2.5-0.5B-Instruct --port 8001 ...
    VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen2.5-0.5B-Instruct --port 8002 ...
    steersman serve --engines http://localhost:8001 http://localhost:8002 --port 8100
"""

from datasets import load_dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.rewards import accuracy_reward

from steersman.controller.sidecar.trl.attach import attach_async  # steersman

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
URL = "http://localhost:8100"  # steersman


def main() -> None:
    """Train."""
    dataset = load_dataset("trl-lib/DeepMath-103K", split="train")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    args = AsyncGRPOConfig(output_dir="out")
    policy = ["prompts.name=prompt_value"]  # steersman
    parts = attach_async(URL, args, dataset, accuracy_reward, tokenizer, config=policy)  # steersman
    trainer = AsyncGRPOTrainer(
        model=MODEL,
        reward_funcs=accuracy_reward,
        args=args,
        train_dataset=dataset,
        **parts,  # steersman
    )
    trainer.train()


if __name__ == "__main__":
    main()
