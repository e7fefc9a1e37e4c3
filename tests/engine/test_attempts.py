"""Attempts on real engines: what comes back is what was written, once."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steersman.mechanisms.fleet import (
    Attempt,
    AttemptRequest,
    EndReason,
    Sampling,
    VersionSpan,
)
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

GREEDY = Sampling(temperature=0.0, ignore_eos=True)
FREE = Sampling(ignore_eos=True)
numbers = itertools.count()


def request(
    prompt: list[int], max_tokens: int, sampling: Sampling = FREE, priority: int = 0
) -> AttemptRequest:
    return AttemptRequest(f"attempt-{next(numbers)}", prompt, max_tokens, sampling, priority)


async def ended(*attempts: Attempt) -> None:
    """Until all of them have ended."""
    left = asyncio.Event()
    for attempt in attempts:
        attempt.on_end(lambda _: left.set())
    while any(attempt.end is None for attempt in attempts):
        left.clear()
        await left.wait()


async def written(attempt: Attempt, tokens: int) -> None:
    """Until it is known to have written so many."""
    while attempt.end is None and attempt.generated_tokens < tokens:
        await asyncio.sleep(0.005)


def first(fleet: RayVllmFleet) -> str:
    return next(info.name for info in fleet.replicas if fleet.is_alive(info.name))


def end_of(attempt: Attempt) -> Any:
    assert attempt.end is not None
    return attempt.end


async def test_an_attempt_returns_its_tokens_logprobs_and_spans(fleet: RayVllmFleet) -> None:
    attempt = fleet.start(first(fleet), request([5, 6, 7], 50))
    await ended(attempt)
    end = end_of(attempt)
    assert end.reason is EndReason.LENGTH
    assert len(end.tokens) == len(end.logprobs) == attempt.generated_tokens == 50
    version = fleet.stats(attempt.replica).weight_version
    assert end.spans == [VersionSpan(version, 0, 50)]
    assert all(0 <= token < 64 for token in end.tokens)
    scores = await fleet.score(attempt.replica, [5, 6, 7, *end.tokens])
    np.testing.assert_allclose(scores[2:], end.logprobs, atol=1e-4)


async def test_a_stop_token_ends_it_and_is_its_last_token(fleet: RayVllmFleet) -> None:
    free = fleet.start(first(fleet), request([9, 8, 7], 40, GREEDY))
    await ended(free)
    tokens = end_of(free).tokens
    stop = tokens[20]
    sampling = Sampling(temperature=0.0, stop_token_ids=(stop,))
    stopped = fleet.start(first(fleet), request([9, 8, 7], 40, sampling))
    await ended(stopped)
    assert end_of(stopped).reason is EndReason.STOP
    assert end_of(stopped).tokens == tokens[: tokens.index(stop) + 1]


async def test_an_abort_returns_exactly_the_partial_tokens(fleet: RayVllmFleet) -> None:
    whole = fleet.start(first(fleet), request([3, 4, 5], 1500, GREEDY))
    await ended(whole)
    partial = fleet.start(first(fleet), request([3, 4, 5], 1500, GREEDY))
    await written(partial, 20)
    fleet.abort(partial)
    await ended(partial)
    end = end_of(partial)
    assert end.reason is EndReason.ABORT
    assert 20 <= len(end.tokens) < 1500
    assert end.tokens == end_of(whole).tokens[: len(end.tokens)]
    assert len(end.logprobs) == len(end.tokens) == end.spans[-1].end


async def test_aborts_that_follow_their_start_at_once_end_every_attempt(
    fleet: RayVllmFleet,
) -> None:
    same_turn = [fleet.start(first(fleet), request([3, i], 1500)) for i in range(20)]
    for attempt in same_turn:
        fleet.abort(attempt)
    next_turn = [fleet.start(first(fleet), request([4, i], 1500)) for i in range(20)]
    await asyncio.sleep(0)
    for attempt in next_turn:
        fleet.abort(attempt)
    await ended(*same_turn, *next_turn)
    assert {end_of(a).reason for a in same_turn + next_turn} == {EndReason.ABORT}
    fleet.abort(same_turn[0])  # nothing to abort any more


async def test_five_hundred_attempts_end_once_each(fleet: RayVllmFleet) -> None:
    names = [info.name for info in fleet.replicas if fleet.is_alive(info.name)]
    ends: list[str] = []
    attempts = [
        fleet.start(names[i % len(names)], request([1 + i % 60, 2], 8 + i % 50)) for i in range(500)
    ]
    for i, attempt in enumerate(attempts):
        attempt.on_end(lambda a: ends.append(a.request.attempt_id))
        if i % 5 == 0:
            fleet.abort(attempt)
    await ended(*attempts)
    assert sorted(ends) == sorted(a.request.attempt_id for a in attempts)
    for i, attempt in enumerate(attempts):
        end = end_of(attempt)
        assert len(end.tokens) == len(end.logprobs)
        if i % 5:
            assert (end.reason, len(end.tokens)) == (EndReason.LENGTH, 8 + i % 50)


async def test_lower_priority_values_are_served_first(fleet: RayVllmFleet) -> None:
    replica = first(fleet)
    order: list[int] = []
    running = [fleet.start(replica, request([1, i], 400, priority=-5)) for i in range(64)]
    late = [fleet.start(replica, request([2, i], 30, priority=i % 2)) for i in range(64)]
    for attempt in late:
        attempt.on_end(lambda a: order.append(a.request.priority))
    await ended(*running, *late)
    assert sum(order[:32]) < 4 < 28 < sum(order[32:])


async def test_statistics_move_while_the_engine_runs_and_rest_when_it_rests(
    fleet: RayVllmFleet,
) -> None:
    replica = first(fleet)
    before = fleet.stats(replica)
    attempts = [fleet.start(replica, request([7, i], 600)) for i in range(4)]
    for attempt in attempts:
        await written(attempt, 10)
    during = fleet.stats(replica)
    assert during.running == 4
    assert during.kv_cache_usage > 0
    await ended(*attempts)
    after = fleet.stats(replica)
    assert (after.running, after.waiting, after.kv_cache_usage) == (0, 0, 0.0)
    iterations = after.iterations - before.iterations
    assert 590 <= iterations <= 620
    assert 3.5 < (after.sequences_run - before.sequences_run) / iterations <= 4.0
    assert 0 < after.busy_s - before.busy_s < 30
    assert before.iterations < during.iterations < after.iterations
    assert before.reported_s < during.reported_s < after.reported_s


async def test_a_common_prompt_is_found_in_the_prefix_cache(fleet: RayVllmFleet) -> None:
    replica, prompt = first(fleet), [11 + i % 40 for i in range(200)]
    for _ in range(2):
        attempt = fleet.start(replica, request(prompt, 2))
        await ended(attempt)
    stats = fleet.stats(replica)
    assert stats.prefix_hits >= 192  # whole blocks of 32
    assert stats.prefix_queries > stats.prefix_hits


async def test_what_the_engine_cannot_take_ends_as_an_error(fleet: RayVllmFleet) -> None:
    replica = first(fleet)
    attempts = [
        fleet.start(replica, request([5] * 3000, 1)),
        fleet.start(replica, request([5] * 2000, 100)),
        fleet.start(replica, request([5, 64], 5)),
        fleet.start(replica, request([-1, 5], 5)),
        fleet.start(replica, request([], 5)),
        fleet.start("nowhere", request([5], 5)),
    ]
    await ended(*attempts)
    assert {end_of(a).reason for a in attempts} == {EndReason.ERROR}
    assert "max_model_len of 2048" in end_of(attempts[1]).detail
    assert "vocabulary of 64" in end_of(attempts[2]).detail
    assert all("\n" not in end_of(a).detail != "" for a in attempts)
    good = fleet.start(replica, request([5], 5))
    await ended(good)
    assert end_of(good).reason is EndReason.LENGTH


async def test_a_seed_repeats_a_sample(fleet: RayVllmFleet, fleet_model: Path) -> None:
    seeded = Sampling(seed=7, ignore_eos=True)
    samples = []
    for info in list(fleet.replicas)[:2]:
        attempt = fleet.start(info.name, request([5, 9], 60, seeded))
        await ended(attempt)
        samples.append(end_of(attempt).tokens)
    assert samples[0] == samples[1]


async def test_equal_prompts_without_a_seed_are_sampled_differently_on_each_replica(
    fleet: RayVllmFleet,
) -> None:
    alive = [info.name for info in fleet.replicas if fleet.is_alive(info.name)]
    for _ in range(3):  # alone on each engine, so that their random streams stay in step
        attempts = [fleet.start(name, request([5, 6, 7], 24)) for name in alive]
        await ended(*attempts)
        answers = [tuple(attempt.end.tokens) for attempt in attempts if attempt.end]
        assert len(set(answers)) == len(alive)
