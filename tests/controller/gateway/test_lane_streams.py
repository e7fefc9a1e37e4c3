"""Streams in the quick lane: what aiohttp would send, at the pace of who reads it."""

import asyncio
from typing import Any

import pytest
from support.gateway import gateway
from support.lane_client import BODY, SLOW, client, lane_of, plain, raw, text

from steersman.controller.gateway import lane as lane_module
from steersman.controller.gateway.lane import LAST_CHUNK, STREAM_HEAD
from steersman.controller.gateway.outflow import Outflow
from steersman.mechanisms.http_vllm.dialects import CHAT_PATH, COMPLETIONS_PATH, GENERATE_PATH

STREAM = {**BODY, "stream": True}
LONG = {**STREAM, "max_tokens": 1000}
TALK = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
SAMPLED = {"max_tokens": 9, "ignore_eos": True}

STREAMS: dict[str, tuple[str, Any]] = {
    "a text": (COMPLETIONS_PATH, {**STREAM, "prompt": "The cat"}),
    "usage": (COMPLETIONS_PATH, {**STREAM, "stream_options": {"include_usage": True}}),
    "samples": (COMPLETIONS_PATH, {**STREAM, "n": 3, "temperature": 1.0, "logprobs": 1}),
    "a block": (COMPLETIONS_PATH, {**STREAM, "steersman": {"group": "g"}, "max_tokens": 1}),
    "a chat": (CHAT_PATH, {**TALK, "stream": True}),
    "tokens": (
        GENERATE_PATH,
        {"token_ids": [7, 8], "sampling_params": SAMPLED, "stream": True},
    ),
    "passed on": (COMPLETIONS_PATH, {**STREAM, "best_of": 1}),
    "refused": (COMPLETIONS_PATH, {**STREAM, "max_tokens": 10**6}),
    "refused where passed on": (COMPLETIONS_PATH, {**STREAM, "best_of": 1, "max_tokens": 10**6}),
    "of another spelling": (COMPLETIONS_PATH, str(STREAM).replace("'", '"').replace("T", "t")),
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_is_what_aiohttp_would_send(kind: str) -> None:
    path, body = STREAMS[kind]
    body = body.replace("stream", "str\\u0065am").encode() if isinstance(body, str) else body
    async with gateway(1) as gate, client(gate) as one, client(gate) as other:
        await one.send(raw(body, path))
        await other.send(raw(body, path, Connection="close"))
        (answer,), (wanted,) = await one.receive(1), await other.receive(1)
        assert len(gate.lanes) == 1
        assert plain(answer) == plain(wanted)
        assert one.answers.heads[0] == {
            name: value for name, value in other.answers.heads[0].items() if name != "connection"
        }
        await one.send(raw())
        assert (await one.receive(2))[1][0] == 200
        assert len(gate.lanes) == 1
        assert not gate.desk.questions


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
        lane.connection_made(wire)
        lane.data_received(raw(STREAM))
        while not wire.written:
            await asyncio.sleep(0.001)
        lane.pause_writing()
        written = len(wire.written)
        await other.send(raw(STREAM))
        (answer,) = await other.receive(1)
        while gate.desk.questions:
            await asyncio.sleep(0.001)
        assert len(wire.written) == written
        lane.resume_writing()
        assert wire.written.startswith(STREAM_HEAD)
        assert wire.written.endswith(LAST_CHUNK)
        told = (200, wire.written.removeprefix(STREAM_HEAD).replace(b"\n\r\n", b"\n"))
        pieces = [piece for piece in told[1].split(b"\r\n") if piece.startswith(b"data")]
        assert text((200, b"".join(pieces))) == text(answer)
        assert lane.idle


async def test_a_client_that_goes_away_ends_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1, token_s=SLOW) as gate:
        async with client(gate) as one:
            await one.send(raw(LONG))
            await one.reader.read(10)
        async with asyncio.timeout(5):
            while gate.desk.questions or gate.fakes[0].running:
                await asyncio.sleep(0.005)
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
    slow = gateway(1, "gateway.request_timeout_s=0.1", token_s=SLOW)
    async with slow as gate, client(gate) as one:
        await one.send(raw(LONG))
        told = await one.until_closed()
        async with asyncio.timeout(5):
            while gate.desk.questions:
                await asyncio.sleep(0.005)
    assert told.startswith(STREAM_HEAD)
    assert b"no answer" not in told
    assert LAST_CHUNK not in told


@pytest.mark.parametrize("begun", [False, True])
async def test_a_bug_is_an_error_before_a_stream_and_breaks_it_afterwards(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, begun: bool
) -> None:
    take = Outflow.take

    def broken(self: Outflow) -> bytes:
        if self.begun == begun:
            raise ValueError("what the client wrote")
        return take(self)

    monkeypatch.setattr(Outflow, "take", broken)
    async with gateway(1, token_s=SLOW) as gate, client(gate) as one:
        await one.send(raw(LONG))
        if begun:
            told = await one.until_closed()
            assert told.count(b"data: {") == 1
            assert LAST_CHUNK not in told
        else:
            assert [status for status, _ in await one.receive(1)] == [500]
        async with asyncio.timeout(5):
            while gate.desk.questions or gate.fakes[0].running:
                await asyncio.sleep(0.005)
    assert "ValueError" in caplog.text
    assert "what the client wrote" not in caplog.text


async def test_news_of_a_stream_that_is_over_do_not_begin_the_next_one() -> None:
    async with gateway(1, prefill_s=60.0) as gate:
        lane, _, wire = lane_of(gate)
        lane.connection_made(wire)
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
