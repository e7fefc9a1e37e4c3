"""The driver's end of the draft stores, with the test in the keepers' place."""

import asyncio
import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from steersman.estimators.errors import FleetError
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    AttemptRequest,
    EndReason,
    Sampling,
    VersionSpan,
)
from steersman.mechanisms.ray_vllm import draft_hosts
from steersman.mechanisms.ray_vllm.draft_hosts import (
    MOST_UNHEARD,
    DraftHosts,
    _Keeper,
)


class ByHand:
    """An actor whose calls the test answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Future[Any]]] = []

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(method, *arguments))

    def _call(self, method: str, *arguments: Any) -> Any:
        future: Future[Any] = Future()
        self.calls.append((method, *arguments, future) if arguments else (method, None, future))
        return SimpleNamespace(future=lambda: future)

    def methods(self) -> list[str]:
        return [call[0] for call in self.calls]


def attempt(*tokens: int) -> Attempt:
    asked = AttemptRequest("a", [1, 2], 10, Sampling(), prompt_key=3, group_id=4)
    end = AttemptEnd(EndReason.STOP, list(tokens), [], [VersionSpan(1, 0, len(tokens))])
    return Attempt(asked, "r", end=end)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> DraftHosts:
    monkeypatch.setattr(draft_hosts, "GATHER_S", 0.0)
    monkeypatch.setattr(draft_hosts.ray, "put", lambda documents: documents)
    return DraftHosts("n", 1000)


def keep(hosts: DraftHosts, name: str = "k") -> ByHand:
    actor = ByHand()
    hosts._keepers[name] = _Keeper(name, actor, owned=False)
    return actor


async def turn() -> None:
    """Let what is due happen."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_ends_go_to_every_keeper_together_and_before_the_version_that_follows(
    hosts: DraftHosts,
) -> None:
    a, b = keep(hosts, "a"), keep(hosts, "b")
    hosts.ended(attempt(5, 6))
    hosts.ended(attempt())  # wrote nothing
    hosts.ended(attempt(7))
    hosts.advance(2)
    for actor in (a, b):
        assert actor.methods() == ["append", "advance"]
        assert actor.calls[0][1].tokens.tolist() == [1, 2, 5, 6, 1, 2, 7]
        assert actor.calls[1][1] == 2
    hosts.ended(attempt(8))
    await turn()
    assert a.methods() == ["append", "advance", "append"]
    await hosts.close()


async def test_a_keeper_that_falls_behind_misses_text_but_no_version(hosts: DraftHosts) -> None:
    slow = keep(hosts)
    for number in range(MOST_UNHEARD + 3):
        hosts.ended(attempt(number))
        await turn()
    hosts.advance(2)
    assert slow.methods() == ["append"] * MOST_UNHEARD + ["advance"]
    for call in slow.calls:
        call[2].set_result(None)
    await turn()
    hosts.ended(attempt(99))
    await turn()
    assert slow.methods()[-2:] == ["advance", "append"]
    assert slow.calls[-1][1].tokens.tolist() == [1, 2, 99]
    await hosts.close()


async def test_of_a_dead_keeper_one_line_is_said_and_no_more_is_sent(
    hosts: DraftHosts, caplog: pytest.LogCaptureFixture
) -> None:
    dead, well = keep(hosts, "dead"), keep(hosts, "well")
    for number in range(3):
        hosts.ended(attempt(number))
        await turn()
    with caplog.at_level(logging.WARNING):
        for call in dead.calls:
            call[2].set_exception(RuntimeError("it was\nkilled"))
        await turn()
        hosts.ended(attempt(3))
        await turn()
        hosts.advance(2)
    assert len(dead.calls) == 3
    assert len(well.calls) == 5
    (line,) = caplog.messages
    assert line == "draft store 'dead' takes no more text: it was killed"
    await hosts.close()


async def test_nothing_is_gathered_without_a_keeper(hosts: DraftHosts) -> None:
    hosts.ended(attempt(5))
    hosts.advance(3)
    assert hosts._ended == []
    assert hosts._timer is None


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (("node", "at temperature 1: wrong", ""), "will draft nothing: at temperature 1: wrong"),
        (("node", "", "gone"), "drafts only from its own requests: the keeper of its draft store"),
        (FleetError("it is lost"), "drafts only from its own requests: it is lost"),
    ],
)
async def test_a_replica_without_a_store_is_said_in_one_line_and_is_no_failure(
    hosts: DraftHosts,
    answer: Any,
    line: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(name: str, namespace: str) -> None:
        raise ValueError("no such actor")

    monkeypatch.setattr(draft_hosts.ray, "get_actor", nobody)

    async def call(method: str, *arguments: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    await hosts.serve(call, "r1")
    (said,) = caplog.messages
    assert said.startswith(f"replica 'r1' {line}")
