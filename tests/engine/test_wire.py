"""The mailbox and the order of commands, without an engine."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import (
    AttemptRequest,
    EndReason,
    ReplicaStats,
    Sampling,
    VersionSpan,
)
from steersman.mechanisms.ray_vllm import actor
from steersman.mechanisms.ray_vllm.actor import Replica
from steersman.mechanisms.ray_vllm.options import EngineOptions, ReplicaSpec
from steersman.mechanisms.ray_vllm.wire import Command, End, Mailbox, Reply, to_spans


def take(mailbox: Mailbox, acknowledged: int) -> Reply:
    return mailbox.unread(acknowledged) or mailbox.take(ReplicaStats(), 0.0, "")


def test_a_reply_that_was_lost_comes_again_and_an_acknowledged_one_does_not() -> None:
    mailbox = Mailbox()
    mailbox.write(1, [5, 6], [-0.5, -0.25], weight_version=3)
    lost = take(mailbox, acknowledged=0)
    mailbox.write(1, [7], [-1.0], weight_version=4)
    mailbox.finish(End(1, EndReason.STOP, []))
    again = take(mailbox, acknowledged=0)
    assert again is lost
    assert again.tokens.tolist() == [5, 6]
    rest = take(mailbox, acknowledged=again.number)
    assert rest.tokens.tolist() == [7]
    assert rest.versions.tolist() == [4]
    assert [end.handle for end in rest.ends] == [1]
    assert take(mailbox, acknowledged=rest.number).ends == []


async def test_a_poll_is_answered_when_an_attempt_ends() -> None:
    mailbox = Mailbox()
    waiting = asyncio.create_task(mailbox.wait(60.0))
    await asyncio.sleep(0)
    mailbox.finish(End(1, EndReason.STOP, []))
    await asyncio.wait_for(waiting, 5.0)


def test_versions_become_spans() -> None:
    assert to_spans([]) == []
    assert to_spans([2, 2, 3]) == [VersionSpan(2, 0, 2), VersionSpan(3, 2, 3)]


class EndlessEngine:
    """Runs every request until it is aborted."""

    errored = False

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.aborted: dict[str, asyncio.Event] = {}

    def get_num_unfinished_requests(self) -> int:
        return 1

    async def generate(
        self, prompt: object, sampling: object, name: str, priority: int
    ) -> AsyncIterator[Any]:
        self.calls.append(f"start {name}")
        self.aborted[name] = asyncio.Event()
        await self.aborted[name].wait()
        end = SimpleNamespace(token_ids=[], finish_reason="abort", weight_versions=None)
        yield SimpleNamespace(outputs=[end])

    async def abort(self, names: list[str]) -> None:
        for name in names:
            self.calls.append(f"abort {name}")
            self.aborted[name].set()


async def test_commands_are_applied_by_number_however_they_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor, "_engine_sampling", lambda request, slot: None)
    replica: Any = Replica(ReplicaSpec("r", "bulk", "", EngineOptions()))
    replica._engine = engine = EndlessEngine()
    replica._info = SimpleNamespace(max_model_len=100)
    replica._vocabulary = 10
    first, second = (AttemptRequest(name, [1], 1, Sampling()) for name in "ab")
    await replica.command("driver", Command(3, [], [1]))
    await replica.command("driver", Command(2, [(2, second)], []))
    assert engine.calls == []
    await replica.command("driver", Command(1, [(1, first)], []))
    # The abort of "a" was applied before its task took a step, so no engine ever saw "a".
    mailbox = replica._drivers["driver"].mailbox
    while "start b" not in engine.calls:
        await mailbox.wait(0.01)
    await replica.command("driver", Command(4, [], [2]))
    await asyncio.gather(*replica._tasks)
    assert engine.calls == ["start b", "abort b"]
    ends = mailbox.take(ReplicaStats(), 0.0, "").ends
    assert [(end.handle, end.reason) for end in ends] == [
        (1, EndReason.ABORT),
        (2, EndReason.ABORT),
    ]


class ListeningEngine(EndlessEngine):
    """Notes what it is told to draft."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, dict[str, int]]] = []

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        assert method == "steersman_draft"
        self.told.append(args)
        return [None]


async def test_drafts_are_commanded_in_order_and_forgotten_with_their_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor, "_engine_sampling", lambda request, slot: None)
    replica: Any = Replica(ReplicaSpec("r", "bulk", "", EngineOptions(draft_tokens=8)))
    replica._engine = engine = ListeningEngine()
    replica._info = SimpleNamespace(max_model_len=100)
    replica._vocabulary = 10
    replica._drafts.max_draft_tokens = 8

    async def command(number: int, **what: Any) -> None:
        await replica.command("driver", Command(number, **{"starts": [], "aborts": []} | what))
        await asyncio.sleep(0)

    first, second = (AttemptRequest(name, [1], 1, Sampling()) for name in "ab")
    await command(2, speculate={1: 3})  # of an attempt that is not there yet
    await command(1, starts=[(1, first), (2, second)], speculate={2: 4}, draft=2)
    assert engine.told[-1] == (2, {"a": 3, "b": 4})
    while len(engine.aborted) < 2:
        await asyncio.sleep(0)
    await command(3, speculate={2: -1}, aborts=[1])
    while 1 in replica._drivers["driver"].requests:
        await asyncio.sleep(0)
    await command(4, draft=99, speculate={1: 5})  # it has ended
    assert engine.told[-1] == (8, {"b": -1})
    assert replica._drafts.default == 8
    await command(5, aborts=[2])
    await asyncio.gather(*replica._tasks)


def test_options_that_cannot_be_are_one_line() -> None:
    with pytest.raises(InvalidInputError, match="draft_tokens is 200; valid: 0 to 128"):
        EngineOptions(draft_tokens=200)
    with pytest.raises(InvalidInputError, match="draft_store_tokens is 0; valid: 1 or more"):
        EngineOptions(draft_store_tokens=0)


def test_speculation_is_set_up_only_where_it_is_asked_for() -> None:
    assert "speculative_config" not in EngineOptions().engine_args("m", on_gpu=False)
    told = EngineOptions(draft_tokens=8).engine_args("m", on_gpu=False)
    assert told["speculative_config"]["num_speculative_tokens"] == 8
    module, _, name = told["speculative_config"]["model"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    assert not {"draft_tokens", "draft_store_tokens"} & told.keys()
