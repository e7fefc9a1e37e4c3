"""Where requests go, and what becomes of them when the gateway is lost."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support.fake_sampler import FakeSampler

from steersman.controller.sidecar.trl import client as client_module
from steersman.controller.sidecar.trl.client import Client, RefusedError, run
from steersman.controller.sidecar.trl.endpoints import Endpoints, GatewayLostError
from steersman.estimators.errors import FleetError, InvalidInputError

BODY = {"model": "tiny", "prompt": [1, 2], "n": 2, "max_tokens": 5, "seed": 1}
TOLD = {"prompt": "p", "group": "g"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a real run are too long here."""
    for name, value in (("HEALTH_S", 0.2), ("WATCH_S", 0.1), ("PAUSE_S", 0.02)):
        monkeypatch.setattr(client_module, name, value)


@asynccontextmanager
async def scene(
    on_loss: str = "plain", engines: int = 2, **times: float
) -> AsyncIterator[tuple[Client, FakeSampler, list[FakeSampler]]]:
    times = {"patience_s": 0.5, "retry_s": 0.05, "request_timeout_s": 10.0} | times
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(FakeSampler(steers=True))
        fakes = [await stack.enter_async_context(FakeSampler()) for _ in range(engines)]
        told: Any = on_loss
        endpoints = Endpoints(gateway.url, [f.url for f in fakes], on_loss=told, **times)
        yield await stack.enter_async_context(Client(endpoints)), gateway, fakes


async def ask(client: Client) -> str:
    """Who answered."""
    return (await client.complete(BODY, TOLD)).at


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gateway": ""}, "neither a gateway nor engines"),
        ({"on_loss": "ignore"}, '"plain", "stop"'),
        ({"on_loss": "plain"}, "needs the engines' URLs"),
        ({"gateway": "localhost:8100"}, "valid: http://HOST:PORT"),
        ({"patience_s": 0}, "patience_s is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        Endpoints(**{"gateway": "http://g:1", **wrong})


async def test_the_gateway_is_told_whose_samples_they_are() -> None:
    async with scene() as (client, gateway, fakes):
        assert await ask(client) == gateway.url
        assert gateway.asked[0]["steersman"] == {**TOLD, "info": True}
        assert not any(fake.asked for fake in fakes)


async def test_without_a_gateway_the_least_busy_engine_is_asked_and_knows_nothing_of_it() -> None:
    async with AsyncExitStack() as stack:
        fakes = [await stack.enter_async_context(FakeSampler(answer_s=0.1)) for _ in range(2)]
        endpoints = Endpoints("", [fake.url for fake in fakes])
        client = await stack.enter_async_context(Client(endpoints))
        await asyncio.gather(*(ask(client) for _ in range(6)))
        assert [len(fake.asked) for fake in fakes] == [3, 3]
        assert "steersman" not in fakes[0].asked[0]


async def test_with_plain_a_gateway_killed_in_the_middle_costs_no_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scene("plain") as (client, gateway, fakes):
        gateway.answer_s = 30.0
        asking = [asyncio.create_task(ask(client)) for _ in range(6)]
        while len(gateway.asked) < 6:
            await asyncio.sleep(0.01)
        with caplog.at_level(logging.WARNING):
            await gateway.down()
            engines = await asyncio.gather(*asking)
        assert sorted(engines) == sorted([fake.url for fake in fakes] * 3)
        assert [r.message for r in caplog.records if "is lost" in r.message] == [
            caplog.records[0].message
        ]
        assert client.endpoints.losses == 1


async def test_a_gateway_that_is_back_is_used_again_and_told_the_version() -> None:
    async with scene("plain") as (client, gateway, fakes):
        client.endpoints.weight_version = 7
        await gateway.down()
        assert await ask(client) in {fake.url for fake in fakes}
        await gateway.up()
        until_s = time.monotonic() + 5.0
        while await ask(client) != gateway.url:
            assert time.monotonic() < until_s
        assert gateway.weight_version == "7"
        assert not client.endpoints.direct


async def test_with_stop_a_lost_gateway_ends_the_run_within_its_patience() -> None:
    async with scene("stop", patience_s=0.3) as (client, gateway, fakes):
        await gateway.down()
        began_s = time.monotonic()
        with pytest.raises(GatewayLostError, match='on_loss="stop" ends the run'):
            await ask(client)
        assert 0.3 <= time.monotonic() - began_s < 3.0
        assert not any(fake.asked for fake in fakes)


async def test_with_stop_a_restart_within_the_patience_is_survived() -> None:
    async with scene("stop", patience_s=20.0) as (client, gateway, _):
        await gateway.down()
        asking = asyncio.create_task(ask(client))
        await asyncio.sleep(0.1)
        await gateway.up()
        assert await asking == gateway.url


@pytest.mark.parametrize("on_loss", ["plain", "stop"])
async def test_a_gateway_that_answers_nothing_is_found_out(on_loss: str) -> None:
    async with scene(on_loss, patience_s=0.3) as (client, gateway, fakes):
        gateway.hung = True
        if on_loss == "stop":
            with pytest.raises(GatewayLostError):
                await ask(client)
        else:
            assert await ask(client) in {fake.url for fake in fakes}


async def test_a_slow_gateway_that_lives_is_waited_for() -> None:
    async with scene("plain") as (client, gateway, _):
        gateway.answer_s = 0.6
        assert await ask(client) == gateway.url
        assert len(gateway.asked) == 1


async def test_a_refusal_is_final() -> None:
    async with scene("plain") as (client, gateway, fakes):
        gateway.refuses = 404
        with pytest.raises(RefusedError, match="answered 404: it will not"):
            await ask(client)
        assert len(gateway.asked) == 1
        assert not any(fake.asked for fake in fakes)


async def test_tokens_go_where_they_belong_and_a_wrong_one_is_named() -> None:
    async with scene("plain") as (client, gateway, fakes):
        gateway.token = "g"
        for fake in fakes:
            fake.token = "e"
        with pytest.raises(RefusedError, match="the gateway's token"):
            await ask(client)
        client.endpoints.token, client.endpoints.engine_token = "g", "e"
        assert await ask(client) == gateway.url
        await gateway.down()
        assert await ask(client) in {fake.url for fake in fakes}


async def test_a_busy_gateway_is_asked_again() -> None:
    async with scene("stop") as (client, gateway, _):
        gateway.busy = 2
        assert await ask(client) == gateway.url
        assert len(gateway.asked) == 3


async def test_a_gateway_that_lives_and_always_fails_is_given_up() -> None:
    async with scene("plain") as (client, gateway, _):
        gateway.refuses = 502
        with pytest.raises(FleetError, match=f"failed {client_module.MAX_FAILURES} times"):
            await ask(client)


async def test_an_engine_that_fails_is_left_out_and_none_left_is_an_error_in_time() -> None:
    async with scene("plain", retry_s=30.0) as (client, gateway, fakes):
        await gateway.down()
        await fakes[0].down()
        assert {await ask(client) for _ in range(4)} == {fakes[1].url}
        await fakes[1].down()
        with pytest.raises(FleetError, match="no engine can be used"):
            await ask(client)


async def test_an_answer_that_never_comes_ends_with_its_time() -> None:
    async with scene("plain", request_timeout_s=0.3) as (client, gateway, _):
        gateway.answer_s = 30.0
        with pytest.raises(FleetError, match=r"no samples within 0\.3 s"):
            await ask(client)


async def test_control_goes_to_each_engine_when_there_is_no_gateway() -> None:
    async with scene("plain") as (client, gateway, fakes):
        assert [r.at for r in await client.everyone("GET", "/get_world_size")] == [gateway.url]
        await gateway.down()
        replies = await client.everyone("POST", "/pause", params={"mode": "keep"})
        assert [reply.at for reply in replies] == [fake.url for fake in fakes]
        assert all(fake.paused for fake in fakes)


async def test_work_can_be_done_where_a_loop_is_running_already() -> None:
    async with scene() as (client, _, _):
        answer = await asyncio.to_thread(run, client.endpoints, lambda c: c.model_name())
        assert answer == "tiny"
