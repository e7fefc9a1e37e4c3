"""The control plane over engines: what a trainer does to them, clients see as on one engine."""

import asyncio

from support.fake_vllm import FakeVllm
from support.gateway import Gateway, gateway

LONG = {"model": "fake-model", "prompt": "a long one", "max_tokens": 2000, "ignore_eos": True}


async def begun(g: Gateway, number: int) -> None:
    """Returns once so many samples are being written."""
    while sum(fake.running for fake in g.fakes) < number:
        await asyncio.sleep(0.002)


async def test_a_pause_that_keeps_requests_stops_their_clock_and_loses_nothing() -> None:
    async with gateway(2, token_s=0.001) as g:
        whole = (await g.post("/v1/completions", LONG))[1]["choices"][0]["text"]
        call = asyncio.create_task(g.post("/v1/completions", LONG))
        await begun(g, 1)
        assert await g.post("/pause?mode=keep", None) == (200, {"status": "paused"})
        stood_s = g.desk.now_s()
        assert [fake.engine.paused for fake in g.fakes] == [True, True]
        async with g.client.get(f"{g.url}/is_paused") as response:
            assert await response.json() == {"is_paused": True}
        await asyncio.sleep(0.05)
        assert (g.desk.now_s(), g.desk.loop.held, call.done()) == (stood_s, True, False)
        assert await g.post("/resume", None) == (200, {"status": "resumed"})
        status, body = await call
        assert (status, body["choices"][0]["text"]) == (200, whole)


async def test_a_request_that_comes_during_a_pause_waits_for_its_end() -> None:
    async with gateway(2) as g:
        await g.post("/pause?mode=keep", None)
        call = asyncio.create_task(g.post("/v1/completions", LONG))
        while not g.desk.questions:
            await asyncio.sleep(0.002)
        assert not call.done()
        await g.post("/resume", None)
        assert (await call)[0] == 200


async def test_a_pause_that_aborts_returns_partial_answers() -> None:
    async with gateway(2, token_s=0.002) as g:
        calls = [asyncio.create_task(g.post("/v1/completions", LONG)) for _ in range(4)]
        await begun(g, 4)
        assert (await g.post("/pause", None))[0] == 200
        for status, body in await asyncio.gather(*calls):
            assert status == 200
            assert body["choices"][0]["finish_reason"] == "abort"
            assert body["usage"]["completion_tokens"] < 2000


async def test_a_pause_that_aborts_can_be_bridged() -> None:
    async with gateway(2, "gateway.on_abort=continue", token_s=0.001) as g:
        whole = (await g.post("/v1/completions", LONG))[1]["choices"][0]["text"]
        call = asyncio.create_task(g.post("/v1/completions", LONG))
        await begun(g, 1)
        await g.post("/pause", None)
        assert not call.done()
        await g.post("/resume", None)
        status, body = await call
        assert (status, body["choices"][0]["finish_reason"]) == (200, "length")
        assert body["choices"][0]["text"] == whole


async def test_requests_are_aborted_by_the_names_their_clients_know() -> None:
    async with gateway(2, token_s=0.002) as g:
        named = asyncio.create_task(g.post("/v1/completions", LONG, X_Request_Id="mine"))
        other = asyncio.create_task(g.post("/v1/completions", {**LONG, "max_tokens": 300}))
        await begun(g, 2)
        answer = await g.post("/abort_requests", {"request_ids": ["cmpl-mine-0"]})
        assert answer == (200, {"status": "aborted", "aborted": 1})
        assert (await named)[1]["choices"][0]["finish_reason"] == "abort"
        assert (await other)[1]["choices"][0]["finish_reason"] == "length"


async def test_new_weights_reach_every_engine_and_the_books() -> None:
    async with gateway(2) as g:
        for path, body in (
            ("/pause?mode=keep", None),
            ("/start_weight_update", None),
            ("/update_weights", {"update_info": {"names": []}}),
            ("/finish_weight_update", {"weight_version": "step-3"}),
            ("/resume", None),
        ):
            assert (await g.post(path, body))[0] == 200
        assert [path for path, _ in g.fakes[1].updates] == [
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
        ]
        assert g.desk.pace.weight_version == 3
        assert [g.desk.fleet.engine(f"engine-{i}").weight_version for i in range(2)] == [3, 3]
        async with g.client.get(f"{g.url}/weight_info") as response:
            assert await response.json() == {"weight_version": "step-3"}


async def test_a_failure_on_one_engine_is_told_and_the_other_has_what_it_got() -> None:
    fakes = [FakeVllm(), FakeVllm(dev=False)]
    async with gateway(fakes) as g:
        status, body = await g.post("/update_weight_version", {"new_version": "5"})
        assert status == 502
        assert body["error"]["message"] == (
            "1 of 2 engines failed: engine-1 answered 404: Not Found"
        )
        assert body["results"]["engine-0"]["body"] == {"success": True, "new_version": "5"}
        assert g.desk.pace.weight_version == 0


async def test_requests_at_the_address_of_one_engine_may_run_on_another() -> None:
    async with gateway(2, token_s=0.001) as g:
        path = "/engines/engine-0/v1/completions"
        calls = [asyncio.create_task(g.post(path, LONG)) for _ in range(4)]
        await begun(g, 4)
        assert [fake.running for fake in g.fakes] == [2, 2]
        for status, body in await asyncio.gather(*calls):
            assert (status, body["object"]) == (200, "text_completion")


async def test_tokenizing_is_one_engines_work() -> None:
    async with gateway(2) as g:
        status, body = await g.post("/tokenize", {"model": "fake-model", "prompt": "abc"})
        assert (status, body["count"]) == (200, 3)
