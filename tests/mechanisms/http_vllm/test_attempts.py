"""One attempt on one engine: how it ends, and with what."""

import asyncio
import json
import random
from typing import Any

import pytest
import pytest_asyncio
from support.attempts import carried_out, end_of, until
from support.fake_vllm import FakeVllm, reference, text_of
from support.plain_dialect import plain_ask, raw_ask, request_of

from steersman.mechanisms.fleet import AttemptRequest, EndReason, Sampling, VersionSpan
from steersman.mechanisms.http_vllm.ask import Abilities
from steersman.mechanisms.http_vllm.dialects.tokens import ask_of
from steersman.mechanisms.http_vllm.fleet import HttpFleet

PROMPT = list(range(10, 30))
LONG = 3000
"""Seconds on the slow engine."""
ON: dict[str, Any] = {"ignore_eos": True}
"""Writes until its budget is used up."""
HELD = {**ON, "stream_interval": 10_000}
"""Shows its first token and then nothing until its end."""


@pytest_asyncio.fixture(params=["new connection", "kept connection"])
async def fleet(
    fleet: HttpFleet, engines: list[FakeVllm], request: pytest.FixtureRequest
) -> HttpFleet:
    """An attempt on a kept connection begins without a task: all of this must hold for both."""
    if request.param == "kept connection":
        for name, engine in zip(("engine-0", "engine-1"), engines, strict=True):
            await carried_out(fleet, name, plain_ask(PROMPT, 1, body=ON), "warm")
            engine.asked.clear()
        idle = fleet._wire.connections._idle
        await until(lambda: sum(map(len, idle.values())) == len(engines))
    return fleet


async def test_an_undisturbed_attempt_writes_the_answer(fleet: HttpFleet) -> None:
    ask = plain_ask(PROMPT, LONG, body=ON)
    end = await carried_out(fleet, "engine-1", ask)
    assert end.reason is EndReason.LENGTH
    assert end.tokens == ask.token_ids == reference(PROMPT, LONG, ignore_eos=True)
    assert "".join(delta.text for delta in ask.deltas) == text_of(end.tokens)
    assert len(end.logprobs) == LONG
    assert end.spans == [VersionSpan(0, 0, LONG)]


async def test_it_stops_where_the_model_does(fleet: HttpFleet) -> None:
    prompt = next([p] for p in range(3, 200) if len(reference([p], 50)) < 50)
    end = await carried_out(fleet, "engine-0", plain_ask(prompt, 50))
    assert end.reason is EndReason.STOP
    assert end.tokens == reference(prompt, 50)


async def test_a_request_without_a_payload_is_asked_in_tokens(fleet: HttpFleet) -> None:
    request = AttemptRequest("t-0", PROMPT, 40, Sampling(ignore_eos=True, temperature=0.0))
    end = await end_of(fleet.start("engine-0", request))
    assert end.tokens == reference(PROMPT, 40, ignore_eos=True)
    assert len(end.logprobs) == 40


@pytest.mark.parametrize("by_id", [True, False], ids=["by id", "by closing"])
async def test_an_aborted_attempt_goes_on_elsewhere_as_if_nothing_had_been(
    fleet: HttpFleet, engines: list[FakeVllm], by_id: bool
) -> None:
    ask = plain_ask(PROMPT, LONG, body=ON)
    if not by_id:
        fleet.engine("engine-0").abilities = Abilities()
    attempt = fleet.start("engine-0", request_of(ask, "a-0"))
    await until(lambda: attempt.generated_tokens > 20)
    fleet.abort(attempt)
    first = await end_of(attempt)
    assert first.reason is EndReason.ABORT
    assert bool(engines[0].aborts) is by_id
    await until(lambda: engines[0].running == 0)
    second = await carried_out(fleet, "engine-1", ask, "a-1")
    assert first.tokens + second.tokens == reference(PROMPT, LONG, ignore_eos=True)
    assert 20 < len(first.tokens) < LONG


async def test_an_abort_by_id_brings_the_tokens_not_shown_yet(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    ask = plain_ask(PROMPT, LONG, body=HELD)
    attempt = fleet.start("engine-0", request_of(ask, "a-0"))
    await until(lambda: attempt.generated_tokens)
    await asyncio.sleep(0.05)
    assert attempt.generated_tokens == 1
    fleet.abort(attempt)
    end = await end_of(attempt)
    assert end.reason is EndReason.ABORT
    assert len(end.tokens) > 20
    assert end.tokens == reference(PROMPT, LONG, ignore_eos=True)[: len(end.tokens)]
    assert all(delta.finish_reason is None for delta in ask.deltas)


async def test_an_abort_in_the_turn_it_was_sent_in_ends_it_without_a_token(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, LONG), "a-0"))
    fleet.abort(attempt)
    assert attempt.end is None, "not in the middle of the command"
    end = await end_of(attempt)
    assert (end.reason, end.tokens) == (EndReason.ABORT, [])
    await until(lambda: engines[0].running == 0)


@pytest.mark.parametrize("by_id", [True, False], ids=["by id", "by closing"])
async def test_a_natural_end_beats_the_abort(
    fleet: HttpFleet, engines: list[FakeVllm], by_id: bool
) -> None:
    """Aborts all around the end: what came whole is not called aborted, whatever was under way."""
    if not by_id:
        fleet.engine("engine-0").abilities = Abilities()
    engines[0].engine.token_s = 0.0005
    rng, reasons, whole = random.Random(1), set(), reference(PROMPT, 20, ignore_eos=True)
    ask = {**ON, "stream_interval": 5}
    for number in range(100):
        attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, 20, body=ask), f"{number}"))
        asyncio.get_running_loop().call_later(rng.uniform(0, 0.018), fleet.abort, attempt)
        end = await end_of(attempt)
        assert end.tokens == whole[: len(end.tokens)]
        assert (end.reason is EndReason.LENGTH) is (end.tokens == whole)
        reasons.add(end.reason)
    assert reasons == {EndReason.LENGTH, EndReason.ABORT}


async def test_an_engine_that_does_not_heed_an_abort_is_left(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, 10_000, body=ON), "a-0"))
    await until(lambda: attempt.generated_tokens)
    engines[0].engine.abort = lambda ids: 0  # type: ignore[method-assign]
    fleet.abort(attempt)
    end = await end_of(attempt)
    assert end.reason is EndReason.ABORT
    await until(lambda: engines[0].running == 0)


async def test_what_the_engine_aborts_by_itself_is_no_end(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    ask = plain_ask(PROMPT, LONG, body=HELD)
    attempt = fleet.start("engine-0", request_of(ask, "a-0"))
    await until(lambda: attempt.generated_tokens)
    engines[0].engine.abort(None)
    first = await end_of(attempt)
    assert first.reason is EndReason.ABORT
    second = await carried_out(fleet, "engine-1", ask, "a-1")
    assert second.reason is EndReason.LENGTH
    assert ask.token_ids == reference(PROMPT, LONG, ignore_eos=True)


async def test_a_wrong_request_is_refused_in_the_engines_words(fleet: HttpFleet) -> None:
    ask = plain_ask(PROMPT, LONG, body={"model": "other"})
    end = await carried_out(fleet, "engine-0", ask)
    assert end.reason is EndReason.REFUSED
    assert ask.answer is not None
    assert ask.answer.status == 404
    assert "does not exist" in json.loads(ask.answer.body)["error"]["message"]
    assert "does not exist" in end.detail


async def test_an_engines_failure_is_told_and_the_engine_lives(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].fails = 1
    ask = plain_ask(PROMPT, 10, body=ON)
    end = await carried_out(fleet, "engine-0", ask)
    assert (end.reason, end.tokens) == (EndReason.ERROR, [])
    assert ask.answer is not None
    assert ask.answer.status == 500
    assert fleet.is_alive("engine-0")
    assert (await carried_out(fleet, "engine-0", ask, "a-1")).reason is EndReason.LENGTH
    assert ask.answer is None


async def test_an_overloaded_engine_fails_after_a_breath(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].overloaded = True
    began_s = asyncio.get_running_loop().time()
    end = await carried_out(fleet, "engine-0", plain_ask(PROMPT, 10))
    assert end.reason is EndReason.ERROR
    assert asyncio.get_running_loop().time() - began_s > 0.2


async def test_an_error_in_mid_stream_keeps_what_was_written(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].errors.append(40)
    ask = plain_ask(PROMPT, LONG, body=ON)
    first = await carried_out(fleet, "engine-0", ask)
    assert first.reason is EndReason.ERROR
    assert len(first.tokens) >= 40
    await carried_out(fleet, "engine-1", ask, "a-1")
    assert ask.token_ids == reference(PROMPT, LONG, ignore_eos=True)


async def test_tokens_are_dated_by_the_weights_that_wrote_them(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, LONG, body=ON), "a-0"))
    await until(lambda: attempt.generated_tokens > 20)
    known = attempt.generated_tokens
    fleet.set_weight_version("engine-0", 3)
    engines[0].hurry()
    end = await end_of(attempt)
    assert end.spans == [VersionSpan(0, 0, known), VersionSpan(3, known, LONG)]


async def test_an_engine_that_dates_its_tokens_is_believed(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    """Over two attempts, of which the second has weights that came in its middle."""
    engines[0].engine.weight_version = "4"
    ask = ask_of(
        AttemptRequest("t-0", PROMPT, LONG, Sampling(ignore_eos=True)),
        fleet.engine("engine-0").abilities,
        "fake-model",
    )
    attempt = fleet.start("engine-0", request_of(ask, "t-0"))
    await until(lambda: attempt.generated_tokens)
    fleet.abort(attempt)
    first = await end_of(attempt)
    assert first.spans == [VersionSpan(4, 0, len(first.tokens))]
    attempt = fleet.start("engine-0", request_of(ask, "t-1"))
    await until(lambda: attempt.generated_tokens > 20)
    engines[0].engine.weight_version = "5"
    engines[0].hurry()
    second = await end_of(attempt)
    assert [span.weight_version for span in second.spans] == [4, 5]
    assert second.spans[0].end == second.spans[1].start > 20
    assert second.spans[1].end == len(second.tokens) == LONG - len(first.tokens)
    assert fleet.stats("engine-0").weight_version == 5


async def test_what_cannot_be_carried_on_begins_again(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].drops.append(40)
    ask = plain_ask(PROMPT, LONG, continuable=False, body=ON)
    end = await carried_out(fleet, "engine-0", ask)
    assert (end.reason, end.tokens, ask.token_ids) == (EndReason.LOST, [], [])
    assert ask.restarts == 1
    await carried_out(fleet, "engine-1", ask, "a-1")
    assert ask.token_ids == reference(PROMPT, LONG, ignore_eos=True)


async def test_what_was_shown_and_cannot_be_carried_on_is_over(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].drops.append(40)
    ask = plain_ask(PROMPT, LONG, continuable=False, streamed=True, body=ON)
    end = await carried_out(fleet, "engine-0", ask)
    assert end.reason is EndReason.REFUSED
    assert len(end.tokens) >= 40


async def test_what_cannot_move_keeps_its_tokens_when_it_is_cut(fleet: HttpFleet) -> None:
    ask = plain_ask(PROMPT, LONG, continuable=False, body=ON)
    attempt = fleet.start("engine-0", request_of(ask, "a-0"))
    await until(lambda: attempt.generated_tokens)
    fleet.abort(attempt)
    end = await end_of(attempt)
    assert end.reason is EndReason.ABORT
    assert end.tokens == ask.token_ids != []


async def test_a_raw_request_is_answered_as_the_engine_answers(fleet: HttpFleet) -> None:
    ask = raw_ask(json.dumps({"prompt": PROMPT, "max_tokens": 9, "echo": True}).encode())
    end = await carried_out(fleet, "engine-0", ask)
    assert (end.reason, end.tokens) == (EndReason.STOP, [])
    assert ask.answer is not None
    told = json.loads(ask.answer.body)
    assert told["choices"][0]["text"] == text_of(reference(PROMPT, 9))


async def test_a_raw_refusal_comes_as_it_is(fleet: HttpFleet) -> None:
    ask = raw_ask(b'{"prompt": [1,')
    assert (await carried_out(fleet, "engine-0", ask)).reason is EndReason.REFUSED
    assert ask.answer is not None
    assert ask.answer.status == 400
    assert b"json_invalid" in ask.answer.body


async def test_a_raw_stream_comes_in_whole_events(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    pieces: list[bytes] = []
    body = {"prompt": PROMPT, "max_tokens": 50, "stream": True, "ignore_eos": True}
    ask = raw_ask(json.dumps(body).encode(), on_event=pieces.append)
    assert (await carried_out(fleet, "engine-0", ask)).reason is EndReason.STOP
    assert all(piece.endswith(b"\n\n") for piece in pieces)
    *events, done, rest = b"".join(pieces).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in events]
    assert "".join(texts) == text_of(reference(PROMPT, 50, ignore_eos=True))


async def test_a_raw_stream_that_breaks_is_over(fleet: HttpFleet, engines: list[FakeVllm]) -> None:
    engines[0].drops.append(10)
    body = {"prompt": PROMPT, "max_tokens": 50, "stream": True, "ignore_eos": True}
    ask = raw_ask(json.dumps(body).encode(), on_event=lambda event: None)
    assert (await carried_out(fleet, "engine-0", ask)).reason is EndReason.REFUSED


async def test_a_raw_request_that_breaks_begins_again(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].drops += [10, 10]
    ask = raw_ask(json.dumps({"prompt": PROMPT, "max_tokens": 9}).encode())
    assert (await carried_out(fleet, "engine-0", ask)).reason is EndReason.ERROR
    assert (await carried_out(fleet, "engine-1", ask, "a-1")).reason is EndReason.STOP


async def test_a_dialect_that_fails_ends_its_attempt(
    fleet: HttpFleet, caplog: pytest.LogCaptureFixture
) -> None:
    ask = plain_ask(PROMPT, 10)
    ask.body = None
    end = await carried_out(fleet, "engine-0", ask)
    assert end.reason is EndReason.ERROR
    assert "a-0" in caplog.text


async def test_a_usual_attempt_needs_no_task(fleet: HttpFleet, engines: list[FakeVllm]) -> None:
    """From the second on, whose connection is kept; and it gives that back without one."""
    await carried_out(fleet, "engine-0", plain_ask(PROMPT, 20, body=ON), "a-0")
    pool, place = fleet._wire.connections, ("127.0.0.1", engines[0].port, False)
    for number in range(1, 4):
        await until(lambda: pool._idle.get(place))
        before = asyncio.all_tasks()
        attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, 20, body=ON), f"a-{number}"))
        assert asyncio.all_tasks() == before
        end = await end_of(attempt)
        assert end.tokens == reference(PROMPT, 20, ignore_eos=True)
    assert [connection.place for connection in pool._all].count(place) == 1


async def test_an_error_in_the_last_piece_of_an_answer_is_told_as_such(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    """The error event, `[DONE]` and the end come together, to an attempt that no task reads."""
    await carried_out(fleet, "engine-0", plain_ask(PROMPT, 20, body=ON), "a-0")
    engines[0].errors = [0]
    end = await carried_out(fleet, "engine-0", plain_ask(PROMPT, 20, body=ON), "a-1")
    assert end.reason is EndReason.ERROR
    assert "before it was complete" not in end.detail


@pytest.mark.parametrize("how", ["aborted", "lost", "closed"])
async def test_an_attempt_without_a_task_ends_when_it_is_given_up(
    fleet: HttpFleet, engines: list[FakeVllm], how: str
) -> None:
    await carried_out(fleet, "engine-0", plain_ask(PROMPT, 20, body=ON), "a-0")
    place = "127.0.0.1", engines[0].port, False
    await until(lambda: fleet._wire.connections._idle.get(place))
    fleet.engine("engine-0").abilities = Abilities()  # it is aborted by closing the connection
    before = asyncio.all_tasks()
    attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, LONG, body=ON), "a-1"))
    assert asyncio.all_tasks() == before
    await until(lambda: attempt.generated_tokens)
    if how == "aborted":
        fleet.abort(attempt)
    elif how == "lost":
        fleet.engine("engine-0").lose("it is dead")
    else:
        await fleet.close()
    end = await end_of(attempt)
    assert end.reason is (EndReason.ABORT if how == "aborted" else EndReason.LOST)
    assert end.tokens == reference(PROMPT, LONG, ignore_eos=True)[: len(end.tokens)]
    await until(lambda: engines[0].running == 0)
