"""The driver's end of a replica, with the test in the replica's place."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from steersman.mechanisms.fleet import ReplicaInfo, ReplicaStats
from steersman.mechanisms.ray_vllm.link import Link
from steersman.mechanisms.ray_vllm.wire import Mailbox, Reply

INFO = ReplicaInfo("r0", "bulk", 4, 100, 1000, "float32")


class ByHand:
    """An actor whose polls the test answers; other calls are answered at once."""

    def __init__(self) -> None:
        self.polls: list[Future[Reply]] = []
        self.mailbox = Mailbox()

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(method))

    def _call(self, method: str) -> Any:
        future: Future[Any] = Future()
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
