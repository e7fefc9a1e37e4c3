"""What a rollout worker takes from TRL's `AsyncGRPOConfig`, or from anything with its fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from steersman.estimators.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Names and defaults are TRL's."""

    num_generations: int = 8
    max_completion_length: int = 2048
    """Tokens."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_inflight_tasks: int = 0
    """Samples in flight or waiting for the trainer."""
    queue_maxsize: int = 1024
    max_staleness: int = 4
    """Versions."""
    samples_per_step: int = 32
    request_timeout_s: float = 600.0

    @property
    def groups_per_step(self) -> int:
        """Groups that one step of the trainer takes, 1 at least."""
        return max(round(self.samples_per_step / self.num_generations), 1)

    @classmethod
    def of(cls, args: Any) -> Self:
        """From the trainer's arguments."""
        simple = (
            "num_generations", "max_completion_length", "temperature", "top_p", "top_k", "min_p",
            "repetition_penalty", "queue_maxsize", "max_staleness",
        )  # fmt: skip
        told = {name: getattr(args, name) for name in simple if hasattr(args, name)}
        told["chat_template_kwargs"] = getattr(args, "chat_template_kwargs", None) or {}
        told["request_timeout_s"] = float(getattr(args, "request_timeout", 600))
        told["samples_per_step"] = samples_per_step(args)
        inflight = getattr(args, "max_inflight_tasks", -1)
        if inflight < 0:  # TRL's own rule
            inflight = max(getattr(args, "max_staleness", 4), 1) * told["samples_per_step"]
        told["max_inflight_tasks"] = inflight
        settings = cls(**told)
        if settings.num_generations < 2:
            raise InvalidInputError(
                f"num_generations is {settings.num_generations}; valid: 2 or more, since an "
                "advantage is over a group's mean"
            )
        if settings.max_inflight_tasks < settings.num_generations:
            raise InvalidInputError(
                f"max_inflight_tasks is {settings.max_inflight_tasks}; valid: one group "
                f"({settings.num_generations}) or more"
            )
        return settings

    def body(
        self, *, model: str, prompt: Sequence[int], n: int, max_tokens: int, seed: int
    ) -> dict[str, Any]:
        """Of the request for `n` samples of one prompt; TRL's fields."""
        body = {
            "model": model,
            "prompt": list(prompt),
            "n": n,
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "repetition_penalty": self.repetition_penalty,
            "logprobs": 0,
            "return_token_ids": True,
            "seed": seed,
        }
        return body if self.min_p is None else body | {"min_p": self.min_p}


def samples_per_step(args: Any) -> int:
    """That one optimizer step takes, over all processes."""
    return int(
        getattr(args, "per_device_train_batch_size", 8)
        * getattr(args, "gradient_accumulation_steps", 1)
        * getattr(args, "world_size", 1)
    )
