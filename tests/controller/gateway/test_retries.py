"""Who gets the answer of an earlier request, and who does not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from steersman.controller.gateway import retries as module
from steersman.controller.gateway.reply import Reply
from steersman.controller.gateway.retries import KEEP_BYTES, KEEP_S, Retries, RetryKey
from steersman.estimators.errors import InvalidInputError

ANSWER = Reply(200, b"42", {})


def key(raw: bytes = b"{}", **headers: str) -> RetryKey | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RetryKey.of(named, "/v1/completions", raw)


def certain(found: RetryKey | None) -> RetryKey:
    assert found is not None
    return found


async def given(reply: Reply = ANSWER) -> Reply:
    return reply


def held(until: asyncio.Event) -> Callable[[], Awaitable[Reply]]:
    async def work() -> Reply:
        await until.wait()
        return ANSWER

    return work


def test_a_request_without_a_name_has_no_key() -> None:
    assert key() is None
    assert Retries().find(None) is None


async def test_a_repeated_key_gets_the_same_answer_while_it_is_open_and_afterwards() -> None:
    known, once, until = Retries(), certain(key(Idempotency_Key="a")), asyncio.Event()
    entry = known.run(once, held(until)())  # type: ignore[arg-type]
    first = asyncio.create_task(known.wait(entry))
    again = known.find(once)
    assert again is entry
    second = asyncio.create_task(known.wait(entry))
    until.set()
    assert await first is await second
    assert await known.wait(certain_entry(known.find(once))) == ANSWER


def certain_entry(entry: object) -> "module._Entry":
    assert isinstance(entry, module._Entry)
    return entry


async def test_a_key_used_for_another_request_is_refused() -> None:
    known = Retries()
    await known.wait(known.run(certain(key(Idempotency_Key="a")), given()))
    with pytest.raises(InvalidInputError, match="Idempotency-Key"):
        known.find(key(b'{"prompt": 1}', Idempotency_Key="a"))


async def test_samples_that_share_a_request_id_are_samples_of_their_own() -> None:
    known = Retries()
    await known.wait(known.run(certain(key(X_Request_Id="prompt-3")), given()))
    assert known.find(key(X_Request_Id="prompt-3")) is None


async def test_a_client_that_says_it_retries_is_known_by_its_request_id() -> None:
    known = Retries()
    await known.wait(known.run(certain(key(X_Request_Id="r")), given()))
    retry = key(X_Request_Id="r", X_Stainless_Retry_Count="1")
    assert known.find(retry) is not None
    other = key(b'{"x": 1}', X_Request_Id="r", X_Stainless_Retry_Count="1")
    assert known.find(other) is None


async def test_work_without_a_key_ends_with_its_client_and_with_one_it_waits_for_the_retry() -> (
    None
):
    known, until = Retries(), asyncio.Event()
    by_id = known.run(certain(key(X_Request_Id="r")), held(until)())  # type: ignore[arg-type]
    by_key = known.run(certain(key(Idempotency_Key="k")), held(until)())  # type: ignore[arg-type]
    for entry in (by_id, by_key):
        waiter = asyncio.create_task(known.wait(entry))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    await asyncio.gather(by_id.task, return_exceptions=True)
    assert by_id.task.cancelled()
    assert not by_key.task.done()
    until.set()
    assert await known.wait(certain_entry(known.find(key(Idempotency_Key="k")))) == ANSWER


async def test_failures_are_not_remembered() -> None:
    known, once = Retries(), certain(key(Idempotency_Key="a"))
    await known.wait(known.run(once, given(Reply(502, b"", {}))))
    await asyncio.sleep(0)
    assert known.find(once) is None
    assert len(known) == 0


async def test_answers_are_forgotten_with_time_and_beyond_their_bytes() -> None:
    now = [0.0]
    known = Retries(lambda: now[0])
    half = Reply(200, b"x" * (KEEP_BYTES // 2), {})
    for name in "abc":
        await known.wait(known.run(certain(key(Idempotency_Key=name)), given(half)))
        await asyncio.sleep(0)
        now[0] += 1
    assert known.find(key(Idempotency_Key="a")) is None
    assert known.find(key(Idempotency_Key="c")) is not None
    now[0] += KEEP_S
    assert known.find(key(Idempotency_Key="c")) is None
    assert len(known) == 0


async def test_closing_gives_up_what_is_open() -> None:
    known = Retries()
    entry = known.run(certain(key(Idempotency_Key="k")), held(asyncio.Event())())  # type: ignore[arg-type]
    await known.close()
    assert entry.task.cancelled()
