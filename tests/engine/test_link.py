"""The driver's end of a replica, with the test in the replica's place."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from steersman.mechanisms.fleet import (
    Attempt,
    AttemptRequest,
    ReplicaInfo,
    ReplicaStats,
    Sampling,
)
from steersman.mechanisms.ray_vllm.link import Link
from steersman.mechanisms.ray_vllm.wire import Command, Mailbox, Reply

INFO = ReplicaInfo("r0", "bulk", 4, 100, 1000, "float32")


class ByHand:
    """An actor whose polls the test answers; other calls are answered at once."""

    def __init__(self) -> None:
        self.polls: list[Future[Reply]] = []
        self.commands: list[Command] = []
        self.mailbox = Mailbox()

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(method, arguments))

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        future: Future[Any] = Future()
        if method == "command":
            self.commands.append(arguments[1])
        if method == "poll":
            self.polls.append(future)
        else:
            future.set_result(None)
        return SimpleNamespace(future=lambda: future)

    async def report(self, weight_version: int) -> None:
        """Answer the poll under way, and wait until the next one is."""
        answered = len(self.polls)
        stats = ReplicaStats(weight_version=weight_version)
        self.polls[-1].set_result(self.mailbox.take(stats, 0.0, ""))
        while len(self.polls) == answered:
            await asyncio.sleep(0)


async def test_pushed_weights_are_known_at_once_and_a_report_from_before_changes_nothing() -> None:
    actor = ByHand()
    link = Link(INFO, actor, "me", owned=False, stall_timeout_s=60.0, changed=lambda: None)
    await asyncio.sleep(0)
    await actor.report(1)
    await link.update_weights(None, 2)
    known = [link.stats.weight_version]
    await actor.report(1)  # sent before the push
    known.append(link.stats.weight_version)
    await actor.report(2)
    known.append(link.stats.weight_version)
    await actor.report(0)  # another driver put older weights there
    known.append(link.stats.weight_version)
    await link.close()
    assert known == [2, 2, 2, 0]


async def test_what_is_drafted_travels_with_starts_and_aborts_of_the_same_turn() -> None:
    actor = ByHand()
    link = Link(INFO, actor, "me", owned=False, stall_timeout_s=60.0, changed=lambda: None)
    one, other, gone = (Attempt(AttemptRequest(n, [1], 1, Sampling()), "r0") for n in "abc")
    link.start(one)
    link.start(other)
    link.speculate(one, 4)
    link.speculate(one, 5)
    link.speculate(gone, 3)  # never started here
    link.draft(2)
    link.abort(other)
    await asyncio.sleep(0)
    link.draft(0)
    await asyncio.sleep(0)
    first, second = actor.commands
    assert [handle for handle, _ in first.starts] == [1, 2]
    assert (first.speculate, first.draft, first.aborts) == ({1: 5}, 2, [2])
    assert (second.speculate, second.draft, second.aborts) == ({}, 0, [])
    await link.close()
