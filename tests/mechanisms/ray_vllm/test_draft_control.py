"""Telling an engine what to draft, with the test in the engine's place."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steersman.mechanisms.drafting.source import DraftClass
from steersman.mechanisms.ray_vllm.draft_control import DraftControl
from steersman.mechanisms.ray_vllm.draft_counters import NO_SLOT, SLOTS, DraftCounters


class Engine:
    """Answers calls when the test lets it."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.told: list[tuple[int, dict[str, int]]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.counters: DraftCounters | None = None

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        if method == "steersman_arm":
            descriptor = os.open(args[0], os.O_RDWR)
            self.counters = DraftCounters.shared(descriptor, 4)
            os.close(descriptor)
            return [self.refusal]
        assert method == "steersman_draft"
        self.told.append(args)
        await self.free.wait()
        return [None]


def files() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("steersman-counters-*")}


async def test_what_the_engine_counts_is_read_without_a_call_and_no_file_is_left() -> None:
    engine, before = Engine(), files()
    control = DraftControl(4, dict)
    await control.arm(engine)
    assert files() == before
    assert (control.max_draft_tokens, control.refusal) == (4, "")
    assert engine.counters is not None
    assert control.counters is not None
    engine.counters.add(DraftClass.HISTORY, NO_SLOT, 4, 3)
    engine.counters.add(DraftClass.HISTORY, NO_SLOT, 2, 0)
    assert control.counters.by_class() == {"history": [2, 6, 3]}
    assert control.counters.accepted[DraftClass.HISTORY].tolist() == [1, 1, 1, 0]


async def test_drafts_of_one_request_are_counted_from_its_start_to_its_end() -> None:
    engine = Engine()
    control = DraftControl(4, dict)
    assert control.take_slot() == NO_SLOT
    await control.arm(engine)
    assert engine.counters is not None
    one, other = control.take_slot(), control.take_slot()
    engine.counters.add(DraftClass.SELF, one, 3, 1)
    engine.counters.add(DraftClass.OTHER, one, 2, 2)
    assert control.free_slot(other) == ([], [])
    assert control.free_slot(one) == ([2, 2, 1], [2, 1, 0])
    slots = [control.take_slot() for _ in range(SLOTS)]
    assert sorted(slots) == list(range(SLOTS))
    assert slots[-2:] == [other, one]  # the longest time after they were free
    assert control.take_slot() == NO_SLOT
    assert control.free_slot(one) == ([], [])  # emptied when it was given away again
    assert control.free_slot(NO_SLOT) == ([], [])


async def test_an_engine_that_must_not_draft_says_why_and_is_told_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(refusal="tokens follow a refused draft")
    control = DraftControl(4, dict)
    await control.arm(engine)
    assert control.max_draft_tokens == 0
    assert control.refusal == "tokens follow a refused draft"
    assert "nothing is drafted: tokens follow a refused draft" in caplog.text
    assert not control.change(3)
    assert control.default == 0


async def test_an_engine_without_speculation_is_asked_nothing() -> None:
    engine = Engine()
    control = DraftControl(0, dict)
    await control.arm(engine)
    assert engine.counters is None
    assert control.refusal == "it was set up without speculation"
    assert not control.change(3)


async def test_commands_that_come_while_the_engine_is_being_told_go_together() -> None:
    engine, commanded = Engine(), {"a": 1}
    control = DraftControl(4, lambda: dict(commanded))
    await control.arm(engine)
    engine.free.clear()
    assert control.change(2)
    telling = asyncio.create_task(control.tell(engine))
    while not engine.told:
        await asyncio.sleep(0)
    assert control.default == 0  # it has not said yet that it knows
    for default in (3, 9, None):
        commanded["b"] = 4
        assert not control.change(default)
    engine.free.set()
    await telling
    assert engine.told == [(2, {"a": 1}), (4, {"a": 1, "b": 4})]
    assert control.default == 4
    assert control.change(None)  # told everything: the next one must be sent again


async def test_an_engine_that_fails_to_listen_is_told_again_with_the_next_command() -> None:
    engine = Engine()
    control = DraftControl(4, dict)
    await control.arm(engine)
    listens = engine.collective_rpc

    async def fails(method: str, args: tuple[Any, ...]) -> list[Any]:
        raise RuntimeError("no")

    engine.collective_rpc = fails  # type: ignore[method-assign]
    assert control.change(2)
    await control.tell(engine)
    assert control.default == 0
    engine.collective_rpc = listens  # type: ignore[method-assign]
    assert control.change(None)
    await control.tell(engine)
    assert control.default == 2


def test_a_replica_imports_nothing_compiled_before_its_engine_runs() -> None:
    """vLLM's start on CPU looks into everything that is loaded, and dies of what llvmlite holds."""
    code = "import sys, steersman.mechanisms.ray_vllm.actor; sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
