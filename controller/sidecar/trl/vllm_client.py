"""TRL's `VLLMClient`, over a gateway: what `GRPOTrainer` in server mode talks to.

Only loaded by a training script that uses TRL.  Requests for samples become one request per group,
with its name, and go where `Endpoints` says, so that a lost gateway is dealt with; weights go by
file where a transfer is given, else TRL's own way.  The rest is TRL's.
"""

import atexit
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient

from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.groups import roll_out
from steersman.controller.sidecar.trl.weights import FileWeightTransfer

if TYPE_CHECKING:
    import torch


class GatewayVLLMClient(VLLMClient):  # type: ignore[misc]
    """Made by the trainer; `install` says with what."""

    endpoints: Endpoints
    transfer: FileWeightTransfer | None
    seed: int = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._collected: list[tuple[str, torch.Tensor]] = []
        self._batches = 0

    def _get(self, url: str, **kwargs: Any) -> Any:
        if self.endpoints.token:
            self.session.headers["Authorization"] = f"Bearer {self.endpoints.token}"
        return super()._get(url, **kwargs)

    def generate(
        self,
        prompts: Any,
        features: Any = None,
        n: int = 1,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        max_tokens: int = 16,
        logprobs: int | None = 0,
        structured_outputs_regex: str | None = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """One request per prompt; images, texts and more than one log-probability TRL's own way."""
        if features is not None or logprobs != 0 or not _are_tokens(prompts):
            return super().generate(
                prompts, features, n, repetition_penalty, temperature, top_p, top_k, min_p,
                max_tokens, logprobs, structured_outputs_regex, generation_kwargs,
            )  # fmt: skip
        self._batches += 1
        fields: dict[str, Any] = {
            "repetition_penalty": repetition_penalty,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "max_tokens": max_tokens,
        }
        if structured_outputs_regex is not None:
            fields["structured_outputs"] = {"regex": structured_outputs_regex}
        fields |= generation_kwargs or {}
        groups = roll_out(
            self.endpoints,
            prompts,
            n,
            # engines are started with one seed, and must not write the same samples twice
            {"seed": self.seed, **fields},
            step=self._batches,
            weight_version=self.endpoints.weight_version or 0,
        )
        answers = [answer for group in groups for answer in group]
        return {
            "prompt_ids": [list(prompt) for prompt in prompts],
            "completion_ids": [answer.token_ids for answer in answers],
            "logprobs": [[[value] for value in answer.logprobs] for answer in answers],
            "logprob_token_ids": [[[token] for token in answer.token_ids] for answer in answers],
        }

    def init_communicator(self, device: Any = 0) -> None:
        """See that the engines take weights by file, or TRL's own way."""
        if self.transfer is None:
            super().init_communicator(device)
        else:
            self.transfer.init_weight_transfer()
            atexit.register(self.transfer.destroy)

    def update_named_params(
        self, metadata: Any, named_params: Iterator[tuple[str, "torch.Tensor"]]
    ) -> None:
        """Push them; inside `weight_update`, with all others at its end."""
        if self.transfer is None:
            super().update_named_params(metadata, named_params)
        elif self._updating_weights:
            self._collected += [(name, tensor.detach().clone()) for name, tensor in named_params]
        else:
            self.transfer.push(named_params)

    def _start_weight_update(self) -> None:
        if self.transfer is None:
            super()._start_weight_update()

    def _finish_weight_update(self) -> None:
        if self.transfer is None:
            super()._finish_weight_update()
            return
        collected, self._collected = self._collected, []
        if collected:
            self.transfer.push(iter(collected))

    def reset_prefix_cache(self) -> None:
        """The pause of a push by file has dropped it."""
        if self.transfer is None:
            super().reset_prefix_cache()

    def close_communicator(self) -> None:
        """Remove the files, too."""
        with contextlib.suppress(AttributeError):
            super().close_communicator()
        if self.transfer is not None:
            self.transfer.destroy()


def install(endpoints: Endpoints, transfer: FileWeightTransfer | None) -> type[GatewayVLLMClient]:
    """From now on TRL's server mode makes clients of this kind."""
    kind = type(
        "GatewayVLLMClient", (GatewayVLLMClient,), {"endpoints": endpoints, "transfer": transfer}
    )
    vllm_generation.VLLMClient = kind
    return kind


def _are_tokens(prompts: Sequence[Any]) -> bool:
    return bool(prompts) and all(isinstance(prompt, list) for prompt in prompts)
