"""`rollout_func` for `GRPOTrainer`: a step's groups through the gateway, correction data included.

    trainer = GRPOTrainer(..., rollout_func=GatewayRollouts(endpoints))

With `use_vllm=True` and `attach_grpo`, the trainer pushes its weights itself before each step;
without vLLM in the trainer (`use_vllm=False`), they are pushed from here when the step has changed,
by the main process, as they are: sharded models need the first way.

Beside TRL's three fields it returns, per sample, `steersman_lag`, `steersman_weight`,
`steersman_exact` and `steersman_trajectory`: TRL hands them on to reward functions.  A sample that
a stopping rule left out (weight 0) is masked (`env_mask`).

Which prompts, and that all groups are trained on, is the synchronous trainer's own decision:
filtering needs `AsyncGRPOTrainer`.
"""

from collections.abc import Sequence
from typing import Any

from steersman.controller.sidecar.trl.dataset import tokens_of
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.groups import roll_out
from steersman.controller.sidecar.trl.weights import FileWeightTransfer
from steersman.estimators.errors import InvalidInputError

NEVER = -1


class GatewayRollouts:
    """Called by the trainer with a step's prompts, each of them `num_generations` times."""

    def __init__(self, endpoints: Endpoints, transfer: FileWeightTransfer | None = None) -> None:
        """`transfer`: for trainers that do not push their weights themselves."""
        self._endpoints, self._transfer = endpoints, transfer
        self._pushed = NEVER

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """The samples, in TRL's form."""
        args, step = trainer.args, int(trainer.state.global_step)
        n = args.num_generations if trainer.model.training else _evaluated(args)
        if len(prompts) % n or any(prompts[i] != prompts[i - i % n] for i in range(len(prompts))):
            raise InvalidInputError(
                f"{len(prompts)} prompts do not come {n} times each in a row (num_generations); "
                "rollouts of one process must be whole groups"
            )
        if self._transfer is not None and self._pushed != step:
            if trainer.accelerator.is_main_process:
                model = trainer.accelerator.unwrap_model(trainer.model)
                self._transfer.push(model.named_parameters())
            trainer.accelerator.wait_for_everyone()
            self._pushed = step
        template = getattr(trainer, "chat_template_kwargs", None) or {}
        tokens = [tokens_of(p, trainer.processing_class, template) for p in prompts[::n]]
        version = self._endpoints.weight_version or 0
        groups = roll_out(
            self._endpoints, tokens, n, _fields(args), step=step, weight_version=version
        )
        answers = [answer for group in groups for answer in group]
        told: dict[str, Any] = {
            "prompt_ids": [list(tokens[i // n]) for i in range(len(answers))],
            "completion_ids": [answer.token_ids for answer in answers],
            "logprobs": [answer.logprobs for answer in answers],
            "steersman_lag": [version - answer.oldest_version for answer in answers],
            "steersman_weight": [answer.weight for answer in answers],
            "steersman_exact": [answer.exact for answer in answers],
            "steersman_trajectory": [(a.steered or {}).get("trajectory_id") for a in answers],
        }
        if any(answer.weight == 0.0 for answer in answers):
            told["env_mask"] = [[int(a.weight > 0.0)] * len(a.token_ids) for a in answers]
        return told


def _fields(args: Any) -> dict[str, Any]:
    fields = {
        "max_tokens": args.max_completion_length,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p or 0.0,
        "repetition_penalty": args.repetition_penalty,
        "seed": getattr(args, "seed", 0),
    }
    return fields | dict(getattr(args, "generation_kwargs", None) or {})


def _evaluated(args: Any) -> int:
    told = getattr(args, "num_generations_eval", None)
    return int(args.num_generations if told is None else told)
