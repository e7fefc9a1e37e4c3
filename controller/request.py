"""What a rollout may be asked for; checked before anything is started."""

import math
from collections.abc import Sequence

from steersman.controller.results import Prompt
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import Fleet


def check_request(
    fleet: Fleet, prompts: Sequence[Prompt], group_size: int, max_new_tokens: int
) -> None:
    """Raise `InvalidInputError`, in one line that says what is valid, unless all is well."""
    if group_size < 1:
        raise InvalidInputError(f"group_size is {group_size}; valid: 1 or more")
    if max_new_tokens < 1:
        raise InvalidInputError(f"max_new_tokens is {max_new_tokens}; valid: 1 or more")
    if not prompts:
        raise InvalidInputError("no prompts were given; valid: one or more")
    limit = min(info.max_model_len for info in fleet.replicas)
    for prompt in prompts:
        length = len(prompt.token_ids)
        if length == 0:
            raise InvalidInputError(f"prompt {prompt.prompt_id!r} is empty; valid: 1 token or more")
        if length + max_new_tokens > limit:
            raise InvalidInputError(
                f"prompt {prompt.prompt_id!r} has {length} tokens; with max_new_tokens "
                f"{max_new_tokens} that exceeds the fleet's max_model_len of {limit}"
            )


def check_count(name: str, count: int, least: int = 1) -> None:
    """Raise `InvalidInputError` for a count that is too small."""
    if count < least:
        raise InvalidInputError(f"{name} is {count}; valid: {least} or more")


def check_quality(quality: float, evaluated: int, seconds: float) -> None:
    """Raise `InvalidInputError` unless it can be what an evaluation measured."""
    if not math.isfinite(quality):
        raise InvalidInputError(f"quality is {quality}; valid: a finite number")
    if evaluated < 0:
        raise InvalidInputError(f"evaluated is {evaluated}; valid: 0 (not known) or more")
    if evaluated and not 0 <= quality <= 1:
        raise InvalidInputError(
            f"quality is {quality}; valid: a share of the {evaluated} evaluated, 0 to 1 "
            "(evaluated = 0 where it is no share)"
        )
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidInputError(f"seconds is {seconds}; valid: a finite number, 0 or more")
