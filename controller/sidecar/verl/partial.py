"""What a trajectory has written so far, put together from its attempts as verl's own client does.

Where tokens of an earlier attempt are given up (a fresh sample takes the trajectory's place), all
that belongs to them goes with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(eq=False, slots=True)
class Partial:
    """Grows by verl's `TokenOutput`s."""

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] | None = None
    routed_experts: Any = None
    """One row per token fed through the model, the prompt's included."""
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Of the last attempt, with the first one's prefix hits."""
    stop_reason: str | None = None
    parts: list[tuple[int, Any]] = field(default_factory=list)
    """Tokens and `global_steps` of each attempt."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, output: Any) -> None:
        """An attempt's output."""
        written = len(output.token_ids)
        self.token_ids.extend(output.token_ids)
        if output.log_probs is not None:
            self.log_probs = [*(self.log_probs or ()), *output.log_probs]
        if output.routed_experts is not None and written:
            if self.routed_experts is None:
                self.routed_experts = output.routed_experts
            else:  # the prefix was routed when it was written, perhaps by other weights
                fresh = output.routed_experts[-written:]
                self.routed_experts = np.concatenate([self.routed_experts, fresh])
        if output.num_preempted is not None:
            self.num_preempted = (self.num_preempted or 0) + output.num_preempted
        cached = self.extra_fields.get("num_cached_tokens")
        self.extra_fields = dict(output.extra_fields)
        if cached is not None:
            self.extra_fields["num_cached_tokens"] = cached
        self.stop_reason = output.stop_reason
        self.parts.append((written, output.extra_fields.get("global_steps")))

    def keep(self, tokens: int) -> None:
        """Give up what is beyond the first `tokens`."""
        surplus = len(self.token_ids) - tokens
        if surplus <= 0:
            return
        del self.token_ids[tokens:]
        if self.log_probs is not None:
            del self.log_probs[tokens:]
        if self.routed_experts is not None:
            self.routed_experts = self.routed_experts[:-surplus] if tokens else None
        while surplus > 0:
            written, steps = self.parts.pop()
            if written > surplus:
                self.parts.append((written - surplus, steps))
            surplus -= written

    def output(self, make: Callable[..., Any], resumable: bool) -> Any:
        """As verl's client returns it: the resumable one counts from nothing, the plain one passes
        on what the engine left out."""
        steps = [steps for written, steps in self.parts if written] or [
            steps for _, steps in self.parts[-1:]
        ]
        known = [step for step in steps if step is not None]
        fields = {
            **self.extra_fields,
            "global_steps": steps[-1] if steps else None,
            "min_global_steps": min(known, default=None),
            "max_global_steps": max(known, default=None),
        }
        fields.setdefault("num_cached_tokens", None)
        empty: Sequence[float] | None = [] if resumable else None
        return make(
            token_ids=self.token_ids,
            log_probs=self.log_probs if self.log_probs is not None else empty,
            routed_experts=self.routed_experts,
            stop_reason=self.stop_reason,
            num_preempted=(self.num_preempted or 0) if resumable else self.num_preempted,
            extra_fields=fields,
        )
