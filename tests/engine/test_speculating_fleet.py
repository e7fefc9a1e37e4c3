"""Drafts on a fleet: commands, migration, weight pushes, and the stores of its machines."""

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from engine.models import random_llama
from engine.test_attempts import end_of, ended, written
from engine.test_weights import load, probe, tensors

from steersman.mechanisms.fleet import Attempt, AttemptRequest, ReplicaStats, Sampling
from steersman.mechanisms.ray_vllm.fleet import EngineOptions, RayVllmFleet

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

MOST = 8
ENGINE = EngineOptions(
    dtype="float32",
    max_model_len=2048,
    max_num_seqs=64,
    draft_tokens=MOST,
    draft_store_tokens=1 << 16,
)
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
numbers = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def speculating(fleet_model: Path) -> AsyncIterator[RayVllmFleet]:
    """Two replicas that may draft; each test leaves them told to draft nothing."""
    fleet = await RayVllmFleet.launch(fleet_model, replicas=2, engine=ENGINE, num_cpus=0)
    assert len(stores(fleet)) == 1
    yield fleet
    await fleet.close()
    assert stores(fleet) == []


def stores(fleet: RayVllmFleet) -> list[Path]:
    """Files of the draft stores."""
    return list(Path("/dev/shm").glob(f"*{fleet.namespace}*"))


def request(
    prompt: list[int], max_tokens: int, draft_tokens: int = -1, **more: Any
) -> AttemptRequest:
    asked = {"sampling": GREEDY, "prompt_key": sum(prompt), "group_id": 1, **more}
    return AttemptRequest(
        f"drafted-{next(numbers)}", prompt, max_tokens, draft_tokens=draft_tokens, **asked
    )


async def reported(fleet: RayVllmFleet, replica: str, holds: Any) -> ReplicaStats:
    """The first report of which that holds."""
    while not holds(fleet.stats(replica)):
        await asyncio.sleep(0.01)
    return fleet.stats(replica)


async def run(fleet: RayVllmFleet, replica: str, *requests: AttemptRequest) -> list[Attempt]:
    attempts = [fleet.start(replica, request) for request in requests]
    await ended(*attempts)
    return attempts


async def stored(fleet: RayVllmFleet, tokens: int) -> None:
    """Until the stores hold as many more tokens."""
    while True:
        if all(s.appended_tokens >= tokens for s in (await fleet._drafts.stats()).values()):
            return
        await asyncio.sleep(0.02)


async def appended(fleet: RayVllmFleet) -> int:
    return max(s.appended_tokens for s in (await fleet._drafts.stats()).values())


async def told(fleet: RayVllmFleet, draft_tokens: int) -> None:
    for info in fleet.replicas:
        if fleet.is_alive(info.name):
            fleet.draft(info.name, draft_tokens)
            await reported(fleet, info.name, lambda s: s.draft_tokens == draft_tokens)


async def test_replicas_say_what_they_can_draft_and_draft_nothing_until_told(
    speculating: RayVllmFleet,
) -> None:
    a = speculating.replicas[0].name
    assert [info.max_draft_tokens for info in speculating.replicas] == [MOST, MOST]
    await run(speculating, a, request([5, 6, 7], 100))
    stats = speculating.stats(a)
    assert (stats.draft_tokens, stats.draft_classes, sum(stats.drafted_at)) == (0, {}, 0)


async def test_what_one_replica_wrote_is_drafted_on_another_and_counted_alike(
    speculating: RayVllmFleet,
) -> None:
    a, b = (info.name for info in speculating.replicas)
    before = await appended(speculating)
    (plain,) = await run(speculating, a, request([8, 6, 7], 300))
    await stored(speculating, before + 300)
    await told(speculating, MOST)
    # Before the command a request of its own number: both are in force.
    (same, other) = await run(
        speculating, b, request([8, 6, 7], 300), request([8, 6, 7], 300, 0, group_id=2)
    )
    assert end_of(same).tokens == end_of(other).tokens == end_of(plain).tokens
    np.testing.assert_allclose(end_of(same).logprobs, end_of(plain).logprobs, atol=1e-4)
    stats = speculating.stats(b)
    verified, drafted, accepted = stats.draft_classes["sibling"]
    assert accepted > 200
    assert "history" not in stats.draft_classes  # the one with 0 was left alone
    assert sum(stats.drafted_at) == sum(c[1] for c in stats.draft_classes.values())
    assert sum(stats.accepted_at) == sum(c[2] for c in stats.draft_classes.values())
    assert verified >= drafted / MOST
    assert all(a >= d for a, d in zip(stats.asked_at, stats.drafted_at, strict=True))
    assert sum(end_of(same).drafted_at) == sum(stats.drafted_at)
    assert sum(end_of(same).accepted_at) == sum(stats.accepted_at)
    assert end_of(other).drafted_at == end_of(other).accepted_at == []
    await told(speculating, 0)


async def test_one_running_attempt_is_switched_on_and_off_again(speculating: RayVllmFleet) -> None:
    a = speculating.replicas[0].name
    before = await appended(speculating)
    await run(speculating, a, request([3, 9, 7], 1500))
    await stored(speculating, before + 1500)

    def tokens(stats: ReplicaStats) -> int:
        return sum(stats.drafted_at)

    start = tokens(speculating.stats(a))
    one, other = (speculating.start(a, request([3, 9, 7], 1500)) for _ in range(2))
    await written(one, 30)
    assert tokens(speculating.stats(a)) == start
    speculating.speculate(one, 4)
    await reported(speculating, a, lambda s: tokens(s) > start)
    await written(one, other.generated_tokens + 100)
    assert other.end is None
    speculating.speculate(one, 0)
    speculating.speculate(other, MOST)
    speculating.abort(one)
    await ended(one, other)
    assert end_of(one).tokens == end_of(other).tokens[: len(end_of(one).tokens)]
    assert len(end_of(other).tokens) == 1500


async def test_a_speculating_attempt_that_migrates_writes_what_it_would_have_written(
    speculating: RayVllmFleet,
) -> None:
    a, b = (info.name for info in speculating.replicas)
    (plain,) = await run(speculating, a, request([4, 9, 2], 600, 0))
    moving = speculating.start(a, request([4, 9, 2], 600, MOST))
    await written(moving, 50)
    speculating.abort(moving)
    await ended(moving)
    part = end_of(moving).tokens
    assert 50 <= len(part) < 600
    rest = request([4, 9, 2, *part], 600 - len(part), MOST)
    (moved,) = await run(speculating, b, rest)
    assert part + end_of(moved).tokens == end_of(plain).tokens
    scores = await speculating.score(b, [4, 9, 2, *end_of(plain).tokens])
    logprobs = end_of(moving).logprobs + end_of(moved).logprobs
    np.testing.assert_allclose(logprobs, scores[2:], atol=1e-4)


async def test_a_weight_push_in_the_middle_of_drafts_takes_nothing_but_their_value(
    speculating: RayVllmFleet, fleet_model: Path, tmp_path: Path
) -> None:
    a = speculating.replicas[0].name
    old, new = load(fleet_model), load(random_llama(tmp_path, seed=1))
    (plain,) = await run(speculating, a, request([6, 9, 2], 1800, 0))
    running = speculating.start(a, request([6, 9, 2], 1800, 4))
    await written(running, 100)
    try:
        await speculating.update_weights(tensors(new), 1, [probe(new)])
        await ended(running)
        end = end_of(running)
        assert [span.weight_version for span in end.spans] == [0, 1]
        cut = end.spans[0].end
        assert end.tokens[:cut] == end_of(plain).tokens[:cut]
        fresh = request([6, 9, 2, *end.tokens[:cut]], 1800 - cut, 0)
        assert end_of((await run(speculating, a, fresh))[0]).tokens == end.tokens[cut:]
        versions = [s.weight_version for s in (await speculating._drafts.stats()).values()]
        assert versions == [1]
    finally:
        await speculating.update_weights(tensors(old), 2, [probe(old)])


async def test_without_their_store_replicas_go_on_and_it_is_said_once(
    speculating: RayVllmFleet, caplog: pytest.LogCaptureFixture
) -> None:
    a = speculating.replicas[0].name
    (keeper,) = speculating._drafts._keepers.values()
    pid = await asyncio.wrap_future(keeper.actor.pid.remote().future())
    (file,) = stores(speculating)
    await told(speculating, MOST)
    with caplog.at_level(logging.WARNING):
        os.kill(pid, signal.SIGKILL)
        while file.exists():
            await asyncio.sleep(0.01)
        for _ in range(3):
            (attempt,) = await run(speculating, a, request([2, 9, 9], 300))
            await asyncio.sleep(0.1)
    assert len(end_of(attempt).tokens) == 300
    lines = [r for r in caplog.records if "takes no more text" in r.getMessage()]
    assert len(lines) == 1
    await told(speculating, 0)
