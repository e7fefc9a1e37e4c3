"""What a TRL training script calls.

    parts = attach_async("http://gateway:8100", args, dataset, reward, tokenizer)
    trainer = AsyncGRPOTrainer(model, reward, args, dataset, **parts)

    attach_grpo("http://gateway:8100")     # before GRPOTrainer is made, with vllm_mode="server"
    trainer = GRPOTrainer(...)

With CUDA, weights go TRL's own way, NCCL, through the gateway, which numbers the ranks of all its
engines; without, by file (`weights`).
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from steersman.controller.config import Config
from steersman.controller.sidecar.trl.endpoints import Endpoints, OnLoss
from steersman.controller.sidecar.trl.weights import FileWeightTransfer
from steersman.controller.sidecar.trl.worker import SteersmanRolloutWorker
from steersman.estimators.errors import InvalidInputError

Weights = Literal["auto", "file", "nccl"]

log = logging.getLogger(__name__)


def attach_async(
    gateway: str | Endpoints,
    args: Any,
    dataset: Any,
    reward_funcs: Any,
    processing_class: Any,
    *,
    engines: Sequence[str] = (),
    on_loss: OnLoss = "stop",
    config: Config | Sequence[str] = (),
    weights: Weights = "auto",
    weights_folder: Path | str | None = None,
    drop_degenerate: bool = True,
    weigh_groups: bool = False,
) -> dict[str, Any]:
    """The arguments that make an `AsyncGRPOTrainer` roll out through the gateway.

    `args.vllm_server_base_url` is set to the gateway as well: the trainer asks there how long a
    sequence may be.  Other parameters as in `SteersmanRolloutWorker` and `Endpoints`.
    """
    endpoints = _endpoints(gateway, engines, on_loss, float(getattr(args, "request_timeout", 600)))
    args.vllm_server_base_url = endpoints.gateway or endpoints.engines[0]
    parts: dict[str, Any] = {
        "rollout_worker": SteersmanRolloutWorker(
            endpoints,
            dataset,
            reward_funcs,
            processing_class,
            args,
            config=config,
            drop_degenerate=drop_degenerate,
            weigh_groups=weigh_groups,
        )
    }
    if by_file(weights):
        parts["weight_transfer"] = FileWeightTransfer(endpoints, weights_folder)
    return parts


def attach_grpo(
    gateway: str | Endpoints,
    *,
    engines: Sequence[str] = (),
    on_loss: OnLoss = "stop",
    weights: Weights = "auto",
    weights_folder: Path | str | None = None,
) -> type:
    """Let every `GRPOTrainer` in server mode that is made from now on ask whole groups at the
    gateway, and take its weights there.

    `vllm_server_base_url` must be the gateway's URL as well.  Returns the client class that TRL
    uses from now on, in place of its own `VLLMClient`.
    """
    from steersman.controller.sidecar.trl.vllm_client import install

    endpoints = _endpoints(gateway, engines, on_loss)
    transfer = FileWeightTransfer(endpoints, weights_folder) if by_file(weights) else None
    return install(endpoints, transfer)


def by_file(weights: Weights) -> bool:
    """Whether weights go by file."""
    if weights not in ("auto", "file", "nccl"):
        raise InvalidInputError(f'weights is {weights!r}; valid: "auto", "file", "nccl"')
    if weights == "auto":
        import torch

        return not torch.cuda.is_available()
    return weights == "file"


def _endpoints(
    gateway: str | Endpoints, engines: Sequence[str], on_loss: OnLoss, timeout_s: float = 600.0
) -> Endpoints:
    if isinstance(gateway, Endpoints):
        if engines:
            raise InvalidInputError("the engines' URLs belong into the Endpoints that are given")
        return gateway
    return Endpoints(gateway, engines, on_loss=on_loss, request_timeout_s=timeout_s)
