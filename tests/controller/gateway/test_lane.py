"""The quick lane: usual requests never see aiohttp, all others do, and no client can tell."""

import asyncio
import gzip
import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gateway import gateway
from support.lane_client import BODY, PATH, SLOW, client, lane_of, plain, raw, text

from steersman.controller.gateway import asked as asked_module
from steersman.controller.gateway import lane as lane_module
from steersman.controller.gateway.security import Tokens
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.usual import MOST_BODY, MOST_HEAD, usual_head


async def test_a_usual_request_is_answered_without_a_task_of_its_own() -> None:
    async with gateway(1, token_s=SLOW) as gate, client(gate) as one:
        await one.send(raw())
        while not gate.running():
            await asyncio.sleep(0)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert len(gate.lanes) == 1
        ours = [name for name in names if "RequestHandler" in name or "request" in name]
        assert not ours
        (answer,) = await one.receive(1)
        status, _ = text(answer)
        assert status == 200


@pytest.mark.parametrize("cuts", [[3], [40], [-1], [-5, -1], [10, 60, -20]])
async def test_a_request_may_come_in_pieces(cuts: list[int]) -> None:
    whole = raw()
    at = [0, *sorted(cut % len(whole) for cut in cuts), len(whole)]
    async with gateway(1) as gate, client(gate) as one, client(gate) as other:
        await one.send(*(whole[a:b] for a, b in pairwise(at)))
        await other.send(whole)
        assert text((await one.receive(1))[0]) == text((await other.receive(1))[0])


async def test_one_connection_serves_one_usual_request_after_the_other() -> None:
    async with gateway(1) as gate, client(gate) as one:
        for number in range(1, 5):
            await one.send(raw({**BODY, "max_tokens": number}))
            assert len(await one.receive(number)) == number
        assert len(gate.lanes) == 1
        counts = [json.loads(b)["usage"]["completion_tokens"] for _, b in one.answers.all]
        assert counts == [1, 2, 3, 4]


UNUSUAL: dict[str, Callable[[], bytes]] = {
    "another route": lambda: raw(path="/health", method="GET", body=b""),
    "a query": lambda: raw(path=PATH + "?x=1"),
    "a name for retries": lambda: raw(Idempotency_Key="k"),
    "a retry": lambda: raw(X_Request_Id="k", X_Stainless_Retry_Count="1"),
    "its last request": lambda: raw(Connection="close"),
    "an expectation": lambda: raw(Expect="100-continue"),
    "a packed body": lambda: raw(gzip.compress(json.dumps(BODY).encode()), Content_Encoding="gzip"),
    "a web page's origin": lambda: raw(Origin="http://elsewhere"),
    "a large body": lambda: raw({**BODY, "prompt": [7] * MOST_BODY}),
    "a large head": lambda: raw(X_Large="x" * MOST_HEAD),
}


@pytest.mark.parametrize("kind", UNUSUAL)
async def test_what_is_not_usual_makes_the_connection_aiohttp_s(kind: str) -> None:
    async with gateway(1) as gate, client(gate) as one:
        await one.send(UNUSUAL[kind]())
        assert await one.receive(1)
        assert len(gate.lanes) == 0


def test_a_head_that_http_forbids_is_not_usual() -> None:
    good = raw()
    assert usual_head(good, MOST_BODY, Tokens()) is not None
    length = str(len(json.dumps(BODY)))
    for bad in (
        good.replace(b"HTTP/1.1", b"HTTP/1.0"),
        good.replace(b"Host: x", b"Host x"),
        good.replace(b"POST", b"PUT"),
        raw(Content_Length="+" + length),
        raw(Content_Length=""),
        raw(Transfer_Encoding="chunked"),
        good.replace(b"Host: x", b"Content-Length: 3"),
    ):
        assert usual_head(bad, MOST_BODY, Tokens()) is None
    assert usual_head(good, int(length) - 1, Tokens()) is None


async def test_a_refusal_is_told_once_and_the_connection_goes_on() -> None:
    async with gateway(1) as gate, client(gate) as one:
        await one.send(raw({**BODY, "steersman": {"grup": "x"}}))
        await one.receive(1)
        await one.send(raw())
        await one.receive(2)
        await one.send(raw())
        answers = await one.receive(3)
        assert [status for status, _ in answers] == [400, 200, 200]
        assert b"grup" in answers[0][1]
        assert len(gate.lanes) == 1
        assert gate.desk.tally.requests == 2


async def test_without_room_a_usual_request_is_told_when_to_come_back() -> None:
    async with gateway(1, token_s=SLOW, max_num_seqs=1) as gate:
        gate.desk._room._settings = GatewayConfig(max_queue=0)
        async with client(gate) as one, client(gate) as other:
            await one.send(raw())
            while not gate.running():
                await asyncio.sleep(0)
            await other.send(raw(X_Request_Id="k"))
            data = await other.reader.read(65536)
            assert data.startswith(b"HTTP/1.1 429 ")
            assert b"Retry-After: " in data
            assert len(gate.lanes.retries) == 0  # a retry must not get the same
            assert text((await one.receive(1))[0])[0] == 200


@pytest.mark.parametrize("together", [True, False])
async def test_requests_before_their_time_are_answered_in_their_order(together: bool) -> None:
    async with gateway(1, token_s=0.002) as gate, client(gate) as one:
        wanted = [raw({**BODY, "max_tokens": number}) for number in (9, 3, 6)]
        await one.send(*([b"".join(wanted)] if together else wanted))
        answers = await one.receive(3)
        counts = [json.loads(body)["usage"]["completion_tokens"] for _, body in answers]
        assert counts == [9, 3, 6]


NAMED = [{}, {"X_Request_Id": "k"}, {"X_Request_Id": "k", "X_Stainless_Retry_Count": "1"}]


@pytest.mark.parametrize("names", NAMED)
async def test_a_client_that_goes_away_has_its_usual_request_aborted(
    names: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(1, token_s=SLOW) as gate:
        async with client(gate) as one:
            await one.send(raw({**BODY, "max_tokens": 1}, X_Request_Id="earlier"))
            await one.receive(1)
            await one.send(raw({**BODY, "max_tokens": 1000}, **names))
            while not gate.running():
                await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while gate.desk.questions or gate.fakes[0].running:
                await asyncio.sleep(0.005)
        assert gate.desk.tally.abandoned == 1
        assert len(gate.lanes) == 0
        assert len(gate.lanes.retries) == 1  # the one that was answered
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


async def test_a_retry_gets_the_answer_of_a_usual_request_that_has_a_name() -> None:
    async with gateway(1, token_s=SLOW) as gate, client(gate) as one, client(gate) as other:
        await one.send(raw(X_Request_Id="k"))
        while not gate.running():
            await asyncio.sleep(0)
        assert len(gate.lanes) == 2
        await other.send(raw(X_Request_Id="k", X_Stainless_Retry_Count="1"))
        one.writer.close()  # the first client gives up; the second waits for the same
        (answer,) = await other.receive(1)
        assert answer[0] == 200
        assert (gate.desk.tally.requests, gate.desk.tally.joined) == (1, 1)
        await other.send(raw(X_Request_Id="k", X_Stainless_Retry_Count="2"))
        assert (await other.receive(2))[1] == answer
        assert gate.desk.tally.abandoned == 0


async def test_a_request_that_takes_too_long_is_ended_and_told_so() -> None:
    slow = gateway(1, "gateway.request_timeout_s=0.1", token_s=SLOW)
    async with slow as gate, client(gate) as one:
        await one.send(raw({**BODY, "max_tokens": 1000}))
        ((status, body),) = await one.receive(1)
        assert (status, b"no answer within 0.1 s" in body) == (504, True)
        async with asyncio.timeout(5):
            while gate.desk.questions:
                await asyncio.sleep(0.005)
        await one.send(raw({**BODY, "max_tokens": 1}))
        assert (await one.receive(2))[1][0] == 200


async def test_a_body_that_does_not_come_ends_its_connection() -> None:
    async with gateway(1, "gateway.request_timeout_s=0.1") as gate, client(gate) as one:
        await one.send(raw()[:-4])
        assert [status for status, _ in await one.receive(1)] == [504]
        assert await one.closed()


async def test_with_a_token_the_lane_is_for_those_who_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "secret")
    async with gateway(1) as gate, client(gate) as known, client(gate) as unknown:
        await known.send(raw(Authorization="Bearer secret"))
        await unknown.send(raw(Authorization="Bearer wrong"))
        assert (await known.receive(1))[0][0] == 200
        assert (await unknown.receive(1))[0][0] == 401
        assert len(gate.lanes) == 1


async def test_a_bug_is_an_answer_and_tells_nothing_of_the_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("what the client wrote")

    async with gateway(1) as gate, client(gate) as one:
        monkeypatch.setattr(asked_module, "reply_of", broken)
        await one.send(raw())
        await one.receive(1)
        monkeypatch.undo()
        monkeypatch.setattr(lane_module, "question_of", broken)
        await one.send(raw())
        await one.receive(2)
        monkeypatch.undo()
        await one.send(raw())
        answers = await one.receive(3)
    assert [status for status, _ in answers] == [500, 500, 200]
    assert "ValueError" in caplog.text
    assert "what the client wrote" not in caplog.text


async def test_at_the_end_idle_lanes_are_closed_and_open_ones_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_module, "FAREWELL_S", 60.0)
    async with gateway(1, token_s=SLOW) as gate, client(gate) as idle, client(gate) as busy:
        await idle.send(raw({**BODY, "max_tokens": 1}))
        await idle.receive(1)
        await busy.send(raw())
        while not gate.running():
            await asyncio.sleep(0)
        closing = asyncio.create_task(gate.lanes.close())
        assert await idle.closed()
        assert not closing.done()
        assert (await busy.receive(1))[0][0] == 200
        assert await busy.closed()
        await closing
        assert len(gate.lanes) == 0


async def test_what_does_not_end_is_given_up_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "FAREWELL_S", 0.05)
    async with gateway(1, token_s=SLOW) as gate, client(gate) as one:
        await one.send(raw({**BODY, "max_tokens": 1000}))
        while not gate.running():
            await asyncio.sleep(0)
        await gate.lanes.close()
        assert await one.closed()
        assert gate.desk.tally.abandoned == 1


async def test_a_connection_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "IDLE_S", 0.0)
    monkeypatch.setattr(lane_module, "SWEEP_S", 0.02)
    async with gateway(1, token_s=SLOW) as gate, client(gate) as idle, client(gate) as busy:
        await busy.send(raw())
        assert await idle.closed()
        assert (await busy.receive(1))[0][0] == 200
        assert await busy.closed()


async def test_a_client_that_sends_without_reading_is_read_no_further() -> None:
    async with gateway(1, token_s=SLOW) as gate:
        lane, handler, wire = lane_of(gate)
        lane.data_received(raw())
        limit = lane._limit
        lane.pause_writing()
        more = raw() * (MOST_BODY // len(raw()) + 2)
        lane.data_received(more)
        assert not wire.reads
        while gate.desk.questions:
            await asyncio.sleep(0.005)
        assert wire.written.count(b"HTTP/1.1 200") == 1
        assert limit is not None
        assert limit.cancelled()
        assert handler.told == []  # it still does not read
        lane.resume_writing()
        assert (handler.told, handler.data) == (["made", "data"], more)
        assert wire.reads
        assert wire.protocol is handler


async def test_what_a_retry_still_waits_for_is_told_to_nobody_else() -> None:
    async with gateway(1, token_s=SLOW) as gate:
        lane, _, wire = lane_of(gate)
        lane.data_received(raw(X_Request_Id="k"))
        entry = lane._entry
        assert entry is not None
        waiting = asyncio.create_task(lane._lanes.retries.wait(entry))
        await asyncio.sleep(0)
        lane._late()
        assert (await waiting).status == 200
        assert wire.written.count(b"HTTP/1.1") == 1
        assert wire.written.startswith(b"HTTP/1.1 504 ")


async def test_aiohttp_is_told_that_a_client_does_not_read() -> None:
    async with gateway(1) as gate:
        lane, handler, _ = lane_of(gate)
        lane._unread = True
        lane._data = b"GET / HTTP/1.1\r\n\r\n"
        lane._go_on()
        assert handler.told == ["made", "paused", "data"]


REQUESTS = [
    raw(),
    raw({**BODY, "max_tokens": 3, "n": 2, "temperature": 1.0}),
    raw({**BODY, "steersman": {"grup": "x"}}),
    raw({**BODY, "max_tokens": 5, "stream": True}),
    raw(b"no json"),
    raw(path="/health", method="GET", body=b""),
    raw(X_Request_Id="k"),
    raw(X_Request_Id="k", X_Stainless_Retry_Count="1"),
    raw(Idempotency_Key="k"),
]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.sampled_from(range(len(REQUESTS))), min_size=1, max_size=5),
    st.lists(st.integers(0, 2000), max_size=6),
)
def test_however_requests_are_cut_into_pieces_each_is_answered_once_and_in_its_turn(
    chosen: Sequence[int], cuts: Sequence[int]
) -> None:
    async def run() -> None:
        whole = b"".join(REQUESTS[i] for i in chosen)
        at = [0, *sorted(cut % len(whole) for cut in cuts), len(whole)]
        async with gateway(1) as gate, client(gate) as one:
            alone = []
            for i in chosen:
                async with client(gate) as other:
                    await other.send(REQUESTS[i])
                    alone += await other.receive(1)
            await one.send(*(whole[a:b] for a, b in pairwise(at) if b > a))
            answers = await one.receive(len(chosen))
            assert [plain(a) for a in answers] == [plain(a) for a in alone]
            assert not gate.desk.questions

    asyncio.run(run())
