"""Who gets the answer of an earlier request, and who does not."""

import asyncio

import pytest

from steersman.controller.gateway.reply import Reply
from steersman.controller.gateway.retries import KEEP_BYTES, KEEP_S, Entry, Retries, RetryKey
from steersman.estimators.errors import InvalidInputError

ANSWER = Reply(200, b"42", {})


def key(raw: bytes = b"{}", **headers: str) -> RetryKey | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RetryKey.of(named, "/v1/completions", raw)


def certain(found: RetryKey | None) -> RetryKey:
    assert found is not None
    return found


def begun(known: Retries, once: RetryKey | None, reply: Reply | None = None) -> Entry:
    """A request under way, or answered with `reply`."""
    entry = known.begin(certain(once), lambda: None)
    if reply is not None:
        entry.resolve(reply)
    return entry


def test_a_request_without_a_name_has_no_key() -> None:
    assert key() is None
    assert Retries().find(None) is None


async def test_a_repeated_key_gets_the_same_answer_while_it_is_open_and_afterwards() -> None:
    known, once = Retries(), certain(key(Idempotency_Key="a"))
    entry = begun(known, once)
    first = asyncio.create_task(known.wait(entry))
    again = known.find(once)
    assert again is entry
    second = asyncio.create_task(known.wait(entry))
    entry.resolve(ANSWER)
    assert await first is await second
    assert await known.wait(certain_entry(known.find(once))) == ANSWER


def certain_entry(entry: Entry | None) -> Entry:
    assert entry is not None
    return entry


async def test_a_key_used_for_another_request_is_refused() -> None:
    known = Retries()
    await known.wait(begun(known, key(Idempotency_Key="a"), ANSWER))
    with pytest.raises(InvalidInputError, match="Idempotency-Key"):
        known.find(key(b'{"prompt": 1}', Idempotency_Key="a"))


async def test_samples_that_share_a_request_id_are_samples_of_their_own() -> None:
    known = Retries()
    await known.wait(begun(known, key(X_Request_Id="prompt-3"), ANSWER))
    assert known.find(key(X_Request_Id="prompt-3")) is None


async def test_a_client_that_says_it_retries_is_known_by_its_request_id() -> None:
    known = Retries()
    await known.wait(begun(known, key(X_Request_Id="r"), ANSWER))
    retry = key(X_Request_Id="r", X_Stainless_Retry_Count="1")
    assert known.find(retry) is not None
    other = key(b'{"x": 1}', X_Request_Id="r", X_Stainless_Retry_Count="1")
    assert known.find(other) is None


async def test_work_ends_with_its_client_unless_a_key_lets_it_wait_for_the_retry() -> None:
    known, ended = Retries(), list[str]()
    by_id = known.begin(certain(key(X_Request_Id="r")), lambda: ended.append("r"))
    by_key = known.begin(certain(key(Idempotency_Key="k")), lambda: ended.append("k"))
    for entry in (by_id, by_key):
        waiter = asyncio.create_task(known.wait(entry))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    await asyncio.gather(by_id.answer, return_exceptions=True)
    assert ended == ["r"]
    by_id.resolve(ANSWER)  # too late: nobody wants it
    assert by_id.answer.cancelled()
    by_key.resolve(ANSWER)
    assert await known.wait(certain_entry(known.find(key(Idempotency_Key="k")))) == ANSWER


async def test_failures_are_not_remembered() -> None:
    known, once = Retries(), certain(key(Idempotency_Key="a"))
    await known.wait(begun(known, once, Reply(502, b"", {})))
    await asyncio.sleep(0)
    assert known.find(once) is None
    assert len(known) == 0


async def test_answers_are_forgotten_with_time_and_beyond_their_bytes() -> None:
    now = [0.0]
    known = Retries(lambda: now[0])
    half = Reply(200, b"x" * (KEEP_BYTES // 2), {})
    for name in "abc":
        await known.wait(begun(known, key(Idempotency_Key=name), half))
        await asyncio.sleep(0)
        now[0] += 1
    assert known.find(key(Idempotency_Key="a")) is None
    assert known.find(key(Idempotency_Key="c")) is not None
    now[0] += KEEP_S
    assert known.find(key(Idempotency_Key="c")) is None
    assert len(known) == 0


async def test_closing_gives_up_what_is_open() -> None:
    known, ended = Retries(), list[str]()
    once = certain(key(Idempotency_Key="k"))
    waiter = asyncio.create_task(known.wait(known.begin(once, lambda: ended.append("k"))))
    await asyncio.sleep(0)
    known.close()
    await asyncio.gather(waiter, return_exceptions=True)
    assert ended == ["k"]
    assert waiter.cancelled()
    assert len(known) == 0
