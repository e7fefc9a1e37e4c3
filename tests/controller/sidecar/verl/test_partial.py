"""Attempts are put together as verl's own client does it, and taken apart again."""

from typing import Any

import numpy as np
import pytest
from support.fake_verl import TokenOutput

from steersman.controller.sidecar.verl.generation import budget_of
from steersman.controller.sidecar.verl.partial import Partial


def attempt(tokens: list[int], steps: int | None = 3, stop: str = "aborted", **more: Any) -> Any:
    fields = {"global_steps": steps, "num_cached_tokens": more.pop("cached", 0)}
    logprobs = [-float(token) for token in tokens]
    return TokenOutput(tokens, logprobs, stop_reason=stop, extra_fields=fields, **more)


def test_tokens_logprobs_and_versions_of_all_attempts_are_there() -> None:
    partial = Partial(2)
    partial.add(attempt([5, 6], steps=3, cached=7, num_preempted=1))
    partial.add(attempt([], steps=4))
    partial.add(attempt([7], steps=5, stop="completed", cached=9, num_preempted=2))
    output = partial.output(TokenOutput, resumable=True)
    assert output.token_ids == [5, 6, 7]
    assert output.log_probs == [-5.0, -6.0, -7.0]
    assert (output.stop_reason, output.num_preempted) == ("completed", 3)
    fields = output.extra_fields
    assert fields["num_cached_tokens"] == 7  # the first prefill's
    steps = (fields["global_steps"], fields["min_global_steps"], fields["max_global_steps"])
    assert steps == (5, 3, 5)


def test_experts_of_the_prefix_stay_those_that_wrote_it() -> None:
    partial = Partial(2)
    partial.add(attempt([5, 6], routed_experts=np.array([[0], [0], [1]])))
    partial.add(attempt([7], routed_experts=np.array([[9], [9], [9], [2]])))
    assert partial.routed_experts.tolist() == [[0], [0], [1], [2]]
    partial.keep(2)
    assert partial.routed_experts.tolist() == [[0], [0], [1]]


def test_what_does_not_count_is_dropped_with_all_that_belongs_to_it() -> None:
    partial = Partial(2)
    partial.add(attempt([5, 6, 7], steps=1))
    partial.add(attempt([8, 9], steps=2))
    partial.keep(4)
    assert (partial.token_ids, partial.parts) == ([5, 6, 7, 8], [(3, 1), (1, 2)])
    partial.keep(0)
    assert (len(partial), partial.parts, partial.log_probs) == (0, [], [])
    partial.add(attempt([4], steps=3))
    fields = partial.output(TokenOutput, resumable=True).extra_fields
    assert (fields["min_global_steps"], fields["max_global_steps"]) == (3, 3)


def test_what_an_engine_leaves_out_is_as_each_of_verls_clients_has_it() -> None:
    bare = TokenOutput([4], None, stop_reason="completed", extra_fields={"global_steps": None})
    for resumable, logprobs, preempted in ((True, [], 0), (False, None, None)):
        partial = Partial(1)
        partial.add(bare)
        output = partial.output(TokenOutput, resumable)
        assert (output.log_probs, output.num_preempted) == (logprobs, preempted)


class Rollout:
    response_length = 100
    prompt_length = 50


@pytest.mark.parametrize(
    ("sampling", "prompt_tokens", "resumable", "found"),
    [
        ({"max_tokens": 7}, 40, True, ("max_tokens", 7)),
        ({"max_new_tokens": 7}, 40, False, ("max_new_tokens", 7)),
        ({}, 40, True, ("max_tokens", 100)),
        ({}, 140, True, ("max_tokens", 100)),
        ({}, 40, False, ("max_tokens", 100)),
        ({}, 140, False, ("max_tokens", 10)),
    ],
)
def test_the_budget_is_verls(
    sampling: dict[str, Any], prompt_tokens: int, resumable: bool, found: tuple[str, int]
) -> None:
    assert budget_of(sampling, prompt_tokens, Rollout, resumable) == found
    assert budget_of(sampling, prompt_tokens, None, resumable)[1] == (
        found[1] if sampling else None
    )
