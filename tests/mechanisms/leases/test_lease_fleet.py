"""Every lease ends exactly once, whatever its client, its replica and the trainer do."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lease_holder import HeldPayload, lease_request

from steersman.estimators.errors import UnknownNameError
from steersman.mechanisms.fleet import Attempt, EndReason, ReplicaInfo
from steersman.mechanisms.leases.fleet import LAST_WORDS_S, REST_S, LeaseFleet
from steersman.mechanisms.leases.lease import EngineReading, LeaseEnd


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Aborts:
    """What replicas were asked to abort."""

    def __init__(self, failing: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self.failing = failing

    async def __call__(self, replica: str, attempt_ids: Sequence[str]) -> None:
        self.asked += [(replica, attempt_id) for attempt_id in attempt_ids]
        if self.failing:
            raise ConnectionError("nobody there")


def two(aborts: Aborts | None = None, clock: Clock | None = None) -> LeaseFleet:
    fleet = LeaseFleet(aborts or Aborts(), clock=clock or Clock())
    for name in ("a", "b"):
        fleet.add(ReplicaInfo(name, max_num_seqs=8, kv_capacity_tokens=1000))
    return fleet


def started(fleet: LeaseFleet, replica: str = "a", attempt_id: str = "x-0") -> Attempt:
    return fleet.start(replica, lease_request(HeldPayload(), attempt_id))


async def test_a_lease_is_granted_to_its_holder_and_ends_as_its_client_tells() -> None:
    fleet, holder = two(), HeldPayload()
    attempt = fleet.start("a", lease_request(holder, "x-0"))
    assert holder.grants == [attempt]
    assert fleet.end("x-0", LeaseEnd(EndReason.STOP, 7, weight_version=3))
    assert attempt.end is not None
    assert attempt.end.reason is EndReason.STOP
    assert len(attempt.end.tokens) == 7
    assert [(s.weight_version, s.start, s.end) for s in attempt.end.spans] == [(3, 0, 7)]
    assert not fleet.end("x-0", LeaseEnd(EndReason.ABORT))
    assert fleet.stats("a").weight_version == 3


async def test_a_request_without_a_client_is_refused() -> None:
    attempt = two().start("a", lease_request(None, "x-0"))
    assert attempt.end is not None
    assert attempt.end.reason is EndReason.REFUSED


async def test_nothing_starts_on_a_replica_that_is_not_there() -> None:
    fleet = two()
    fleet.remove("a")
    attempt = started(fleet)
    assert attempt.end is not None
    assert attempt.end.reason is EndReason.LOST
    assert not fleet.is_alive("a")
    fleet.add(ReplicaInfo("a"))
    assert fleet.is_alive("a")


async def test_an_abort_is_repeated_until_the_client_tells_the_end() -> None:
    aborts = Aborts(failing=True)
    fleet = two(aborts)
    attempt = started(fleet)
    fleet.abort(attempt)
    fleet.abort(attempt)
    async with asyncio.timeout(5):
        while len(aborts.asked) < 3:
            await asyncio.sleep(0.01)
    fleet.end("x-0", LeaseEnd(EndReason.ABORT, 2))
    await asyncio.sleep(0)
    seen = len(aborts.asked)
    await asyncio.sleep(0.3)
    assert len(aborts.asked) == seen
    assert set(aborts.asked) == {("a", "x-0")}
    assert fleet.is_alive("a")  # it did what it was asked to


async def test_aborts_of_one_turn_go_as_one_message() -> None:
    calls = []

    async def abort(replica: str, attempt_ids: Sequence[str]) -> None:
        calls.append((replica, list(attempt_ids)))

    fleet = LeaseFleet(abort)
    fleet.add(ReplicaInfo("a"))
    attempts = [started(fleet, "a", f"x-{n}") for n in range(3)]
    for attempt in attempts:
        fleet.abort(attempt)
    await asyncio.sleep(0.01)
    assert calls == [("a", ["x-0", "x-1", "x-2"])]
    await fleet.close()
    assert {a.end.reason for a in attempts if a.end} == {EndReason.LOST}


async def test_a_replica_that_aborts_unasked_rests_and_longer_each_time_it_refuses() -> None:
    clock = Clock()
    fleet = two(clock=clock)
    started(fleet, attempt_id="x-0")
    fleet.end("x-0", LeaseEnd(EndReason.ABORT, 5))
    assert not fleet.is_alive("a")
    clock.now_s += REST_S[0] + 0.001
    assert fleet.is_alive("a")
    rests = []
    for n in range(1, 6):
        started(fleet, attempt_id=f"x-{n}")
        fleet.end(f"x-{n}", LeaseEnd(EndReason.ABORT))
        before = clock.now_s
        while not fleet.is_alive("a"):
            clock.now_s += 0.05
        rests.append(clock.now_s - before)
    assert rests == sorted(rests)
    assert rests[-1] == pytest.approx(REST_S[1], abs=0.1)


async def test_a_paused_replica_is_not_alive_and_makes_no_progress() -> None:
    clock = Clock()
    fleet = two(clock=clock)
    attempt = started(fleet)
    for tokens in (0, 10, 20):
        fleet.read("a", EngineReading({"x-0": tokens}, requests=1))
        clock.now_s += 1.0
    fleet.estimate_progress()
    assert attempt.generated_tokens == 30  # 10 per second, a second after the last look
    fleet.read("a", EngineReading({"x-0": 30}, requests=1, paused=True))
    clock.now_s += 5.0
    fleet.estimate_progress()
    assert attempt.generated_tokens == 30
    assert not fleet.is_alive("a")
    fleet.unread("a")
    assert fleet.is_alive("a")


async def test_progress_is_estimated_from_ends_where_nobody_looks() -> None:
    clock = Clock()
    fleet = two(clock=clock)
    started(fleet, attempt_id="x-0")
    clock.now_s += 10
    fleet.end("x-0", LeaseEnd(EndReason.LENGTH, 200))
    attempt = started(fleet, attempt_id="x-1")
    clock.now_s += 2
    fleet.estimate_progress()
    assert attempt.generated_tokens == 40
    clock.now_s += 1000
    fleet.estimate_progress()
    assert attempt.generated_tokens == attempt.request.max_tokens - 1


async def test_looks_tell_iterations_batch_sizes_and_the_cache() -> None:
    clock = Clock()
    fleet = two(clock=clock)
    started(fleet, attempt_id="x-0")
    started(fleet, attempt_id="x-1")
    fleet.read("a", EngineReading({"x-0": 5, "x-1": 1}, requests=2, context_tokens=100))
    clock.now_s += 1.0
    fleet.read("a", EngineReading({"x-0": 15, "x-1": 11}, requests=3, context_tokens=500))
    stats = fleet.stats("a")
    assert (stats.iterations, stats.sequences_run, stats.busy_s) == (10, 20, 1.0)
    assert (stats.running, stats.waiting) == (2, 1)
    assert stats.kv_cache_usage == 0.5
    assert stats.reported_s == clock.now_s


async def test_the_clients_of_a_lost_replica_may_still_tell_what_they_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("steersman.mechanisms.leases.fleet.LAST_WORDS_S", 0.01)
    fleet = two()
    told, silent = started(fleet, attempt_id="x-0"), started(fleet, attempt_id="x-1")
    fleet.lose("a", "it died")
    assert not fleet.is_alive("a")
    assert fleet.end("x-0", LeaseEnd(EndReason.STOP, 4))
    async with asyncio.timeout(5):
        while silent.end is None:
            await asyncio.sleep(0.005)
    assert told.end is not None
    assert told.end.reason is EndReason.STOP
    assert silent.end.reason is EndReason.LOST
    assert not fleet.all_lost
    fleet.lose("b", "it died as well")
    assert fleet.all_lost
    assert LAST_WORDS_S > 1


async def test_a_replica_that_is_not_known_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown replica 'c'.*Valid: a, b"):
        two().remove("c")


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["start", "end", "abort", "unasked", "lost", "gone", "remove", "lose", "add", "read"]
        ),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_lease_ends_exactly_once(steps: list[Step]) -> None:
    asyncio.run(_played(steps))


async def _played(steps: list[Step]) -> None:
    fleet, ends = two(), Counter[str]()
    attempts: list[Attempt] = []
    for word, n in steps:
        name = "ab"[n % 2]
        attempt_id = f"x-{n % max(len(attempts), 1)}"
        if word == "start":
            attempt = fleet.start(name, lease_request(HeldPayload(), f"x-{len(attempts)}"))
            attempt.on_end(lambda ended: ends.update([ended.request.attempt_id]))
            attempts.append(attempt)
        elif word == "end":
            fleet.end(attempt_id, LeaseEnd(EndReason.STOP, n))
        elif word == "unasked":
            fleet.end(attempt_id, LeaseEnd(EndReason.ABORT, n % 3))
        elif word == "lost":
            fleet.end(attempt_id, LeaseEnd(EndReason.LOST))
        elif word == "gone":
            fleet.lose_lease(attempt_id, "its client is gone")
        elif word == "abort" and attempts:
            fleet.abort(attempts[n % len(attempts)])
        elif word == "remove":
            fleet.remove(name)
        elif word == "lose":
            fleet.lose(name, "it died")
        elif word == "add":
            fleet.add(ReplicaInfo(name))
        elif word == "read":
            fleet.read(name, EngineReading({attempt_id: n}, requests=n, paused=n == 5))
        fleet.estimate_progress()
        open_now = [a for a in attempts if a.end is None]
        assert sum(map(fleet.leases, "ab")) == len(open_now)
        assert all(fleet.is_open(a.request.attempt_id) for a in open_now)
    await fleet.close()
    assert ends == Counter({attempt.request.attempt_id: 1 for attempt in attempts})
    assert sum(map(fleet.leases, "ab")) == 0
