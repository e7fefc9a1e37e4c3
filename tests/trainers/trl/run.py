"""One TRL training run on the signs task, as a process of its own: what the tests compare.

    python run.py steersman --model FOLDER --out FILE --gateway URL --engines URL URL
    python run.py plain --model FOLDER --out FILE --engines URL

`steersman`: `AsyncGRPOTrainer` with the rollout worker of this project, through the gateway.
`plain`: TRL's own rollout worker against one engine; only the weight transfer is not TRL's, since
that needs CUDA.  `grpo`: `GRPOTrainer` in server mode against the gateway.  Everything else is
equal.  FILE gets the curves as JSON.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from support import trl_signs

from steersman.controller.sidecar.trl.attach import attach_async, attach_grpo
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.groups import roll_out
from steersman.controller.sidecar.trl.weights import FileWeightTransfer
from steersman.examples.signs.task import EOS_ID, prompt_tokens, reward

GROUP, CAP = 8, 384


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arm", choices=("steersman", "plain", "grpo", "grpo-func"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gateway", default="")
    parser.add_argument("--engines", nargs="+", default=[])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--samples", type=int, default=32, help="per step")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pool", type=int, default=200)
    parser.add_argument("--unsolvable", type=float, default=0.2)
    parser.add_argument("--held-out", type=int, default=300)
    parser.add_argument("--evaluations", type=int, default=2, help="beside the first")
    parser.add_argument("--on-loss", default="stop")
    parser.add_argument("--patience", type=float, default=10.0, help="s, with --on-loss stop")
    parser.add_argument("--retry", type=float, default=10.0, help="s, with --on-loss plain")
    parser.add_argument("--set", nargs="*", default=["prompts.name=prompt_value"])
    return parser.parse_args()


def common(args: argparse.Namespace) -> dict[str, Any]:
    """Settings of both trainers."""
    return {
        "output_dir": str(args.out.parent / f"{args.out.stem}-trainer"),
        "per_device_train_batch_size": args.samples,
        "gradient_accumulation_steps": 1,
        "num_generations": GROUP,
        "max_completion_length": CAP,
        "learning_rate": args.rate,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "max_steps": args.steps,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "seed": args.seed,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "vllm_server_base_url": args.gateway or args.engines[0],
    }


def endpoints_of(args: argparse.Namespace) -> Endpoints:
    """Where rollouts and weights go."""
    return Endpoints(
        args.gateway,
        args.engines,
        on_loss=args.on_loss,
        patience_s=args.patience,
        retry_s=args.retry,
    )


class Watch:
    """Curves of one run: what the trainer logs, and how many held-out problems are solved."""

    def __init__(self, args: argparse.Namespace) -> None:
        from transformers import TrainerCallback

        self.args, self.logs, self.quality = args, [], {}
        self.began_s = time.monotonic()
        self._problems = trl_signs.held_out(args.held_out, seed=1)
        every = max(args.steps // max(args.evaluations, 1), 1)
        watch = self

        class Callback(TrainerCallback):
            def on_train_begin(self, *_: Any, **told: Any) -> None:
                watch.evaluate(0)

            def on_step_end(self, _args: Any, state: Any, *_: Any, **told: Any) -> None:
                if state.global_step % every == 0 or state.global_step == args.steps:
                    watch.evaluate(state.global_step)

            def on_log(self, _args: Any, state: Any, *_: Any, logs: Any, **told: Any) -> None:
                numbers = {k: v for k, v in logs.items() if isinstance(v, int | float)}
                finite = {k: v for k, v in numbers.items() if math.isfinite(v)}
                told = {"step": state.global_step, "s": time.monotonic() - watch.began_s}
                watch.logs.append(told | finite)
                say(f"step {state.global_step} reward {logs.get('reward')}")

        self.callback = Callback()

    def evaluate(self, step: int) -> None:
        """One sample of each held-out problem, straight from the engines."""
        if not self.args.held_out or not self.args.evaluations or step in self.quality:
            return
        fields = {"max_tokens": CAP, "temperature": 1.0, "seed": 1234}
        direct = Endpoints("", self.args.engines)
        prompts = [prompt_tokens(problem) for problem in self._problems]
        groups = roll_out(direct, prompts, 1, fields, step=0, weight_version=0)
        self.quality[step] = [
            reward(problem, answer.token_ids, finished=answer.token_ids[-1] == EOS_ID)
            for problem, (answer,) in zip(self._problems, groups, strict=True)
        ]
        share = sum(self.quality[step]) / len(self._problems)
        say(f"step {step} solves {share:.3f} of held-out problems")


def asynchronous(args: argparse.Namespace, watch: Watch) -> dict[str, Any]:
    """Train with `AsyncGRPOTrainer`."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    trl_signs.without_cuda()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    data = Dataset.from_list(trl_signs.training_rows(args.pool, args.unsolvable, args.seed))
    config = AsyncGRPOConfig(
        **common(args),
        token_budget=-1,
        max_staleness=4,
        max_inflight_tasks=2 * args.samples,
        queue_maxsize=args.samples,
        weight_sync_steps=1,
        heartbeat_stale_after_s=120.0,
    )
    if args.arm == "steersman":
        endpoints = endpoints_of(args)
        parts = attach_async(
            endpoints, config, data, trl_signs.signs_reward, tokenizer, config=args.set
        )
    else:
        # TRL's worker wants to know how the tokenizer's messages are parsed; these are plain text
        tokenizer.response_template = {"fields": {"content": {"content": "text"}}}
        parts = {"weight_transfer": FileWeightTransfer(Endpoints("", args.engines[:1]))}
        data = data.shuffle(seed=args.seed)
    trainer = AsyncGRPOTrainer(
        str(args.model),
        reward_funcs=trl_signs.signs_reward,
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        **parts,
    )
    trainer.add_callback(watch.callback)
    trainer.train()
    worker = parts.get("rollout_worker")
    if worker is None:
        return {}
    return {"counts": worker.counts(), "losses": worker.endpoints.losses}


def synchronous(args: argparse.Namespace, watch: Watch) -> dict[str, Any]:
    """Train with `GRPOTrainer` in server mode."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from steersman.controller.sidecar.trl.rollout_func import GatewayRollouts

    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    data = Dataset.from_list(trl_signs.training_rows(args.pool, args.unsolvable, args.seed))
    endpoints = endpoints_of(args)
    own = {"use_vllm": True, "vllm_mode": "server"}
    function = None
    if args.arm == "grpo":
        attach_grpo(endpoints)
    else:
        own = {"use_vllm": False}
        function = GatewayRollouts(endpoints, FileWeightTransfer(endpoints))
    trainer = GRPOTrainer(
        str(args.model),
        reward_funcs=trl_signs.signs_reward,
        args=GRPOConfig(**common(args), **own, beta=0.0),
        train_dataset=data,
        processing_class=tokenizer,
        rollout_func=function,
    )
    trainer.add_callback(watch.callback)
    trainer.train()
    return {"weight_version": endpoints.weight_version}


def say(line: str) -> None:
    """To whoever watches."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """Run and tell."""
    args = arguments()
    watch = Watch(args)
    train = synchronous if args.arm.startswith("grpo") else asynchronous
    told: dict[str, Any] = {"arm": args.arm, "error": ""}
    try:
        told |= train(args, watch)
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        told |= {"logs": watch.logs, "quality": watch.quality}
        told["seconds"] = time.monotonic() - watch.began_s
        trl_signs.written(told, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
