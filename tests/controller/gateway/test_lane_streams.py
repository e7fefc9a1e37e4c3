"""Streams in the quick lane: what aiohttp would send, at the pace of who reads it."""

import asyncio
from typing import Any

import pytest
from support.attempts import until
from support.gateway import gateway
from support.lane_client import BODY, SLOW, client, lane_of, plain, raw, text

from steersman.controller.gateway import lane as lane_module
from steersman.controller.gateway.lane import LAST_CHUNK, STREAM_HEAD
from steersman.controller.gateway.outflow import Outflow
from steersman.mechanisms.http_vllm.ask import Answer
from steersman.mechanisms.http_vllm.dialects import CHAT_PATH, COMPLETIONS_PATH, GENERATE_PATH

STREAM = {**BODY, "stream": True}
LONG = {**STREAM, "max_tokens": 1000}
TALK = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
SAMPLED = {"max_tokens": 9, "ignore_eos": True}

STREAMS: dict[str, tuple[str, Any]] = {
    "a text": (COMPLETIONS_PATH, {**STREAM, "prompt": "The cat"}),
    "usage": (COMPLETIONS_PATH, {**STREAM, "stream_options": {"include_usage": True}}),
    "samples": (COMPLETIONS_PATH, {**STREAM, "n": 3, "temperature": 1.0, "logprobs": 1}),
    "ids": (COMPLETIONS_PATH, {**STREAM, "return_token_ids": True}),
    "a chat": (CHAT_PATH, {**TALK, "stream": True}),
    "tokens": (
        GENERATE_PATH,
        {"token_ids": [7, 8], "sampling_params": SAMPLED, "stream": True},
    ),
    "passed on": (COMPLETIONS_PATH, {**STREAM, "best_of": 1}),
    "of another spelling": (COMPLETIONS_PATH, str(STREAM).replace("'", '"').replace("T", "t")),
}
REFUSED = {
    "refused": (COMPLETIONS_PATH, {**STREAM, "max_tokens": 10**6}),
    "refused where passed on": (COMPLETIONS_PATH, {**STREAM, "best_of": 1, "max_tokens": 10**6}),
}


@pytest.mark.parametrize("kind", [*STREAMS, *REFUSED])
async def test_a_stream_is_what_aiohttp_would_send(kind: str) -> None:
    path, body = (STREAMS | REFUSED)[kind]
    body = body.replace("stream", "str\\u0065am").encode() if isinstance(body, str) else body
    slow = gateway(1, token_s=0.002)
    async with slow as gate, client(gate) as one, client(gate) as other:
        await one.send(raw(body, path))
        await other.send(raw(body, path, Connection="close"))
        (answer,), (wanted,) = await one.receive(1), await other.receive(1)
        assert len(gate.lanes) == 1
        assert plain(answer) == plain(wanted)
        assert one.answers.heads[0] == {
            name: value for name, value in other.answers.heads[0].items() if name != "connection"
        }
        if kind in STREAMS:
            told = answer[1].removesuffix(b"data: [DONE]\n\n")
            assert (answer[0], len(answer[1]) - len(told)) == (200, 14)
            assert told.count(b"data: {") >= 8
            assert b"[DONE]" not in told
            assert told.count(b'"role"') == (kind == "a chat")
            assert told.count(b'"prompt_token_ids":[') == (kind == "ids")
        else:
            assert answer[0] == 400
        await one.send(raw())
        assert (await one.receive(2))[1][0] == 200
        assert len(gate.lanes) == 1
        assert not gate.desk.questions


async def test_a_stream_ends_with_the_block_that_was_asked_for() -> None:
    async with gateway(1) as gate, client(gate) as one:
        await one.send(raw(STREAM, X_Steersman_Info="true"))
        ((_, body),) = await one.receive(1)
    *_, block, done = [event for event in body.split(b"\n\n") if event]
    assert b'"steersman":{' in block
    assert done == b"data: [DONE]"


async def test_a_stream_that_fails_ends_with_the_error_in_one_event() -> None:
    async with gateway(1, token_s=SLOW) as gate:
        lane, _, wire = lane_of(gate)
        lane.data_received(raw(LONG))
        await until(lambda: wire.written != b"")
        question = lane._question
        assert question is not None
        question.failure = Answer(502, b'{\n"error": 1}')
        gate.desk.abort(None)
        await until(lambda: wire.written.endswith(LAST_CHUNK))
        assert wire.written.count(b"HTTP/1.1") == 1
        assert b'data: { "error": 1}\n\ndata: [DONE]\n\n' in wire.written
        assert question.asks[0].deltas == []  # nobody wants them any more


async def test_who_listens_late_is_told_at_once() -> None:
    async with gateway(1) as gate:
        lane, _, _ = lane_of(gate)
        lane.data_received(raw(STREAM))
        question = lane._question
        assert question is not None
        told: list[int] = []
        question.when_told(lambda: None)
        while not question.written:
            await asyncio.sleep(0)
        question.when_told(lambda: told.append(1))
        assert told == [1]
        lane.connection_lost(None)


async def test_after_a_stream_that_came_too_late_the_connection_serves_the_next() -> None:
    async with gateway(1, token_s=SLOW) as gate:
        lane, _, wire = lane_of(gate)
        lane.data_received(raw(LONG))
        lane._late()
        assert wire.written.startswith(b"HTTP/1.1 504 ")
        await until(lambda: not gate.desk.questions)  # its end is told to nobody
        lane.data_received(raw(STREAM))
        await until(lambda: wire.written.endswith(LAST_CHUNK))
        lane.data_received(raw())
        lane._late()  # this one is no stream
        assert wire.written.count(b"HTTP/1.1 504 ") == 2


async def test_what_came_while_nobody_read_is_gone_on_with_after_a_stream_that_is_given_up() -> (
    None
):
    async with gateway(1, prefill_s=60.0) as gate:
        lane, handler, _ = lane_of(gate)
        lane.data_received(raw(STREAM))
        lane.pause_writing()
        lane._news()
        await asyncio.sleep(0)
        lane._late()
        lane.data_received(b"GET /health HTTP/1.1\r\n\r\n")
        assert handler.told == []
        lane.resume_writing()
        assert handler.told == ["made", "data"]


async def test_a_stream_is_sent_without_a_task_of_its_own() -> None:
    async with gateway(1, token_s=SLOW) as gate, client(gate) as one:
        await one.send(raw(STREAM))
        while not any(execution.generated_tokens for execution in gate.running()):
            await asyncio.sleep(0)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if "RequestHandler" in name or "request" in name]
        (answer,) = await one.receive(1)
    assert answer[1].count(b"data: {") == 8
    assert answer[1].endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_nobody_reads_waits_and_then_is_told_whole() -> None:
    async with gateway(1, token_s=SLOW) as gate, client(gate) as other:
        lane, _, wire = lane_of(gate)
        lane.data_received(raw(STREAM))
        await until(lambda: wire.written != b"")
        lane.pause_writing()
        written = len(wire.written)
        await other.send(raw(STREAM))
        (answer,) = await other.receive(1)
        await until(lambda: not gate.desk.questions)
        assert len(wire.written) == written
        lane.resume_writing()
        assert wire.written.startswith(STREAM_HEAD)
        assert wire.written.endswith(LAST_CHUNK)
        told = (200, wire.written.removeprefix(STREAM_HEAD).replace(b"\n\r\n", b"\n"))
        pieces = [piece for piece in told[1].split(b"\r\n") if piece.startswith(b"data")]
        assert text((200, b"".join(pieces))) == text(answer)
        assert lane.idle


async def test_a_stream_that_is_passed_on_is_one_even_if_it_ended_before_anybody_read() -> None:
    async with gateway(1) as gate:
        lane, _, wire = lane_of(gate)
        lane.data_received(raw(STREAMS["passed on"][1]))
        lane.pause_writing()
        await until(lambda: not gate.desk.questions)
        assert wire.written == b""
        lane.resume_writing()
        assert wire.written.startswith(STREAM_HEAD)
        assert wire.written.count(b"data: {") == 8


async def test_a_client_that_goes_away_ends_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1, token_s=SLOW) as gate:
        async with client(gate) as one:
            await one.send(raw(LONG))
            await one.reader.read(10)
        await until(lambda: not (gate.desk.questions or gate.fakes[0].running))
        assert gate.desk.tally.abandoned == 1
        assert len(gate.lanes) == 0
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


async def test_a_stream_that_does_not_begin_in_time_is_told_so_and_one_that_has_is_broken() -> None:
    late = gateway(1, "gateway.request_timeout_s=0.1", prefill_s=60.0)
    async with late as gate, client(gate) as one:
        await one.send(raw(STREAM))
        ((status, body),) = await one.receive(1)
        assert (status, b"no answer within 0.1 s" in body) == (504, True)
        await one.send(raw({**BODY, "model": "none"}))
        assert (await one.receive(2))[1][0] != 200
    slow = gateway(1, "gateway.request_timeout_s=1", token_s=SLOW)
    async with slow as gate, client(gate) as one:
        await one.send(raw(LONG))
        told = await one.until_closed()
        await until(lambda: not gate.desk.questions)
    assert told.startswith(STREAM_HEAD)
    assert b"no answer" not in told
    assert LAST_CHUNK not in told


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("headers", [{}, {"Idempotency_Key": "k"}], ids=["lane", "aiohttp"])
async def test_a_bug_is_an_error_before_a_stream_and_breaks_it_afterwards(
    headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    begun: bool,
) -> None:
    take = Outflow.take

    def broken(self: Outflow) -> bytes:
        if self.begun == begun:
            raise ValueError("what the client wrote")
        return take(self)

    monkeypatch.setattr(Outflow, "take", broken)
    async with gateway(1, token_s=SLOW) as gate, client(gate) as one:
        await one.send(raw(LONG, **headers))
        if begun:
            told = await one.until_closed()
            assert told.count(b"data: {") == 1
            assert LAST_CHUNK not in told
        else:
            assert [status for status, _ in await one.receive(1)] == [500]
        await until(lambda: not (gate.desk.questions or gate.fakes[0].running))
    assert "ValueError" in caplog.text
    assert "what the client wrote" not in caplog.text


async def test_news_of_a_stream_that_is_over_do_not_begin_the_next_one() -> None:
    async with gateway(1, prefill_s=60.0) as gate:
        lane, _, wire = lane_of(gate)
        lane.data_received(raw(STREAM))
        lane._news()
        lane._late()
        assert wire.written.startswith(b"HTTP/1.1 504 ")
        told = wire.written
        lane.data_received(raw(STREAM))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.written == told
        lane.connection_lost(None)


async def test_at_the_end_a_stream_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "FAREWELL_S", 60.0)
    async with gateway(1, token_s=SLOW) as gate, client(gate) as busy:
        await busy.send(raw(STREAM))
        while not gate.running():
            await asyncio.sleep(0)
        closing = asyncio.create_task(gate.lanes.close())
        (answer,) = await busy.receive(1)
        assert answer[1].endswith(b"data: [DONE]\n\n")
        assert await busy.closed()
        await closing
