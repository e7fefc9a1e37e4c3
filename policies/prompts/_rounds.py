"""Rounds of a batch that is refilled: prompts in the data loader's order, and no more of them."""

import math

import numpy as np

from steersman.policies.prompting import PromptChoice, PromptRequest


def in_order(request: PromptRequest, count: int, size: int, reason: str) -> PromptChoice:
    """The next `count` candidates, `size` samples each.

    A data loader shuffles, so that each candidate is as likely as any other to be among them.
    """
    offered = len(request.candidates)
    row = np.arange(min(count, offered))
    return PromptChoice(
        row=row,
        size=np.full(len(row), size),
        max_new_tokens=np.full(len(row), request.max_new_tokens),
        inclusion_probability=np.full(len(row), len(row) / max(offered, 1)),
        reason=reason,
    )


def oversampled(groups: int, factor: float) -> int:
    """Groups to ask for, where `groups` are to be left."""
    return math.ceil(groups * factor - 1e-9)  # 3 * 1.1 is 3.3000000000000003


def exhausted(request: PromptRequest, max_rounds: int) -> PromptChoice | None:
    """No prompts at all, if there were `max_rounds` rounds (0: there may be any number)."""
    if not 0 < max_rounds <= request.refill:
        return None
    lacking = f"the batch lacks {request.groups_wanted} groups after {max_rounds} rounds"
    return in_order(request, 0, request.group_size, f"{lacking} and stays short")
