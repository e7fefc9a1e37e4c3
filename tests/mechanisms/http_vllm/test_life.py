"""Engines that die, stall, pause, come back, or were never there."""

import asyncio
import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.attempts import carried_out, end_of, until
from support.fake_process import FakeProcess
from support.fake_vllm import FakeVllm, reference
from support.plain_dialect import plain_ask, request_of

from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.mechanisms.fleet import EndReason
from steersman.mechanisms.http_vllm.fleet import HttpFleet, HttpSettings

PROMPT = list(range(10, 30))
LONG = 3000
"""Seconds on the slow engine."""
ON = {"ignore_eos": True}
QUICK = HttpSettings(scrape_s=0.02, revive_s=0.02, stall_timeout_s=0.3)


def test_a_url_that_is_none_is_named() -> None:
    for urls, words in (
        ([], "no engine URL"),
        (["localhost:8000"], "'localhost:8000' is no engine URL"),
        (["http://x:y"], "http://HOST:PORT"),
        (["http://x:1", "http://x:1/v1/"], "given twice"),
    ):
        with pytest.raises(InvalidInputError, match=words) as caught:
            asyncio.run(HttpFleet.attach(urls))
        assert "\n" not in str(caught.value)


async def test_where_nothing_answers_there_is_no_fleet() -> None:
    with pytest.raises(FleetError, match=r"no engine answers at http://127\.0\.0\.1:9") as caught:
        await HttpFleet.attach(["http://127.0.0.1:9"])
    assert "\n" not in str(caught.value)


async def test_engines_of_different_models_make_no_fleet() -> None:
    async with FakeVllm() as one, FakeVllm(model="other") as two:
        with pytest.raises(InvalidInputError, match="serves other, another one fake-model"):
            await HttpFleet.attach([one, two])


async def test_an_engine_is_known_by_what_it_says(engines: list[FakeVllm]) -> None:
    plain = FakeVllm(dev=False, scale_out=False, max_num_seqs=7, max_model_len=512)
    async with plain as url:
        fleet = await HttpFleet.attach([f"{engines[0].url}/v1", url])
        rich, poor = fleet.engine("engine-0"), fleet.engine("engine-1")
        assert rich.abilities.generate
        assert rich.abilities.developer
        assert rich.abilities.abort_path == "/inference/v1/abort_requests"
        assert rich.info.kv_capacity_tokens == 4096 * 16
        assert rich.info.max_num_seqs == 256
        assert not poor.abilities.generate
        assert not poor.abilities.developer
        assert poor.abilities.abort_path == ""
        assert poor.info.max_model_len == poor.abilities.max_model_len == 512
        assert poor.models[0]["id"] == "fake-model"
        await fleet.close()


async def test_probing_an_engine_aborts_nothing(engines: list[FakeVllm]) -> None:
    fleet = await HttpFleet.attach([engines[0].url])
    assert engines[0].aborts == []
    assert engines[0].asked == []
    await fleet.close()


async def test_a_key_is_sent_along() -> None:
    async with FakeVllm(api_key="secret") as url:
        with pytest.raises(FleetError, match="answers 401"):
            await HttpFleet.attach([url])
        fleet = await HttpFleet.attach([url], HttpSettings(api_key="secret"))
        end = await carried_out(fleet, "engine-0", plain_ask(PROMPT, 5, body=ON))
        assert end.reason is EndReason.LENGTH
        await fleet.close()


async def test_a_dead_engines_requests_go_on_elsewhere(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    asks = [plain_ask([*PROMPT, number], LONG, body=ON) for number in range(20)]
    attempts = [
        fleet.start("engine-0", request_of(ask, f"a-{number}")) for number, ask in enumerate(asks)
    ]
    await until(lambda: all(attempt.generated_tokens > 20 for attempt in attempts))
    fleet.changed.clear()
    await engines[0].down()
    ends = [await end_of(attempt) for attempt in attempts]
    assert {end.reason for end in ends} == {EndReason.LOST}
    assert not fleet.is_alive("engine-0")
    assert fleet.changed.is_set()
    for number, (ask, end) in enumerate(zip(asks, ends, strict=True)):
        assert len(end.tokens) > 20
        await carried_out(fleet, "engine-1", ask, f"b-{number}")
        assert ask.token_ids == reference([*PROMPT, number], LONG, ignore_eos=True)


async def test_a_dead_engine_takes_nothing_and_comes_back(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    await engines[0].down()
    await until(lambda: not fleet.is_alive("engine-0"))
    end = await carried_out(fleet, "engine-0", plain_ask(PROMPT, 5))
    assert (end.reason, end.tokens) == (EndReason.LOST, [])
    fleet.changed.clear()
    await engines[0].up()
    await until(lambda: fleet.is_alive("engine-0"))
    assert fleet.changed.is_set()
    assert (await carried_out(fleet, "engine-0", plain_ask(PROMPT, 5))).tokens


async def test_an_engine_may_come_later(engines: list[FakeVllm]) -> None:
    late = FakeVllm(max_model_len=1000)
    async with late as url:
        pass
    fleet = await HttpFleet.attach([engines[0].url, url], QUICK)
    assert [fleet.is_alive(info.name) for info in fleet.replicas] == [True, False]
    await late.up()
    await until(lambda: fleet.is_alive("engine-1"))
    assert fleet.replicas[1].max_model_len == 1000
    await late.down()
    await fleet.close()


async def test_an_engine_that_comes_back_with_another_model_stays_away(
    fleet: HttpFleet, engines: list[FakeVllm], caplog: pytest.LogCaptureFixture
) -> None:
    await engines[0].down()
    await until(lambda: not fleet.is_alive("engine-0"))
    engines[0].model = "other"
    await engines[0].up()
    await until(lambda: "serves other, not fake-model" in caplog.text)
    await asyncio.sleep(0.1)
    assert caplog.text.count("serves other") == 1
    assert not fleet.is_alive("engine-0")


async def test_one_broken_connection_is_no_death(fleet: HttpFleet, engines: list[FakeVllm]) -> None:
    engines[0].drops.append(40)
    other = fleet.start("engine-0", request_of(plain_ask(PROMPT, LONG, body=ON), "b-0"))
    await until(lambda: engines[0].running)
    engines[0].drops.append(40)
    end = await carried_out(fleet, "engine-0", plain_ask(PROMPT, LONG, body=ON))
    assert end.reason is EndReason.LOST
    assert (await end_of(other)).reason is EndReason.LOST
    assert fleet.is_alive("engine-0")
    assert (await carried_out(fleet, "engine-0", plain_ask(PROMPT, LONG), "a-1")).tokens


async def test_a_kept_connection_that_the_server_closes_is_no_fault(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].closes_kept = True
    for number in range(20):
        end = await carried_out(fleet, "engine-0", plain_ask(PROMPT, 5, body=ON), f"a-{number}")
        assert end.reason is EndReason.LENGTH
    assert fleet.is_alive("engine-0")


async def test_an_engine_is_not_blamed_for_our_own_lack_of_files(
    fleet: HttpFleet, engines: list[FakeVllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be connected, but what runs, runs on."""
    attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, LONG, body=ON), "a-0"))
    await until(lambda: attempt.generated_tokens)

    async def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_connection", none_left)
    monkeypatch.setattr(loop, "sock_connect", none_left)
    others = [carried_out(fleet, "engine-0", plain_ask(PROMPT, 5), f"b-{n}") for n in range(5)]
    assert EndReason.ERROR in {end.reason for end in await asyncio.gather(*others)}
    engines[0].hurry()
    assert (await end_of(attempt)).reason is EndReason.LENGTH
    assert fleet.is_alive("engine-0")


async def test_an_engine_that_says_it_is_ill_is_dead(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    engines[0].ill = True
    engines[0].fails = 1
    end = await carried_out(fleet, "engine-0", plain_ask(PROMPT, 5))
    assert end.reason is EndReason.LOST
    assert not fleet.is_alive("engine-0")


async def test_a_stalled_engine_is_given_up_and_taken_back_when_it_writes(
    engines: list[FakeVllm],
) -> None:
    engines[0].dev = False
    fleet = await HttpFleet.attach([fake.url for fake in engines], QUICK)
    attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, 10_000, body=ON), "a-0"))
    await until(lambda: attempt.generated_tokens > 20)
    engines[0].stalled = True
    end = await end_of(attempt)
    assert end.reason is EndReason.LOST
    assert len(end.tokens) > 20
    assert "done nothing" in end.detail
    await until(lambda: len(engines[0].asked) > 1)
    assert not fleet.is_alive("engine-0"), "good health is not enough"
    engines[0].stalled = False
    await until(lambda: fleet.is_alive("engine-0"))
    await fleet.close()


async def test_an_idle_engine_that_answers_nothing_is_given_up(engines: list[FakeVllm]) -> None:
    fleet = await HttpFleet.attach([fake.url for fake in engines], QUICK)
    engines[0].hung = True
    await until(lambda: not fleet.is_alive("engine-0"))
    assert fleet.is_alive("engine-1")
    await fleet.close()


def _by_the_trainer_through_us(fleet: HttpFleet, engine: FakeVllm) -> None:
    engine.stalled = True
    fleet.set_paused("engine-0", True)


def _by_somebody_else(fleet: HttpFleet, engine: FakeVllm) -> None:
    engine.engine.freeze(paused=True)


@pytest.mark.parametrize("pause", [_by_the_trainer_through_us, _by_somebody_else])
async def test_a_paused_engine_does_not_stall(
    engines: list[FakeVllm], pause: Callable[[HttpFleet, FakeVllm], None]
) -> None:
    fleet = await HttpFleet.attach([fake.url for fake in engines], QUICK)
    attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, LONG, body=ON), "a-0"))
    await until(lambda: attempt.generated_tokens > 20)
    pause(fleet, engines[0])
    await asyncio.sleep(3 * QUICK.stall_timeout_s)
    assert fleet.is_alive("engine-0")
    engines[0].engine.freeze(paused=False, stalled=False)
    engines[0].hurry()
    fleet.set_paused("engine-0", False)
    assert (await end_of(attempt)).reason is EndReason.LENGTH
    await fleet.close()


async def test_a_long_request_that_shows_nothing_is_no_stall(engines: list[FakeVllm]) -> None:
    """Its engine's counters move."""
    fleet = await HttpFleet.attach([fake.url for fake in engines], QUICK)
    ask = plain_ask(PROMPT, 1500, body={**ON, "stream_interval": 10_000})
    assert (await carried_out(fleet, "engine-0", ask)).reason is EndReason.LENGTH
    await fleet.close()


async def test_a_killed_process_is_seen_at_once_and_its_new_weights_are_old() -> None:
    with FakeProcess(token_s=0.001) as process:
        fleet = await HttpFleet.attach([process.url], QUICK)
        fleet.set_weight_version("engine-0", 4)
        attempt = fleet.start("engine-0", request_of(plain_ask(PROMPT, 10_000, body=ON), "a-0"))
        await until(lambda: attempt.generated_tokens > 20)
        process.kill()
        assert (await end_of(attempt)).reason is EndReason.LOST
        assert not fleet.is_alive("engine-0")
        process.start()
        await until(lambda: fleet.is_alive("engine-0"))
        assert fleet.stats("engine-0").weight_version == 0
        await fleet.close()


async def test_the_control_plane_reaches_one_engine(
    fleet: HttpFleet, engines: list[FakeVllm]
) -> None:
    answer = await fleet.request("engine-1", "POST", "/pause", params={"mode": "keep"})
    assert answer.status == 200
    assert engines[1].engine.paused
    assert not engines[0].engine.paused
    body = b'{"new_version": "7"}'
    headers = {"Content-Type": "application/json"}
    path = "/update_weight_version"
    await fleet.request("engine-1", "POST", path, body=body, headers=headers)
    assert engines[1].engine.weight_version == "7"
    await engines[1].down()
    with pytest.raises(FleetError, match="'engine-1' does not answer /pause"):
        await fleet.request("engine-1", "POST", "/pause")


async def test_what_still_runs_when_the_fleet_closes_is_lost(engines: list[FakeVllm]) -> None:
    before, files = asyncio.all_tasks(), _open_files()
    fleet = await HttpFleet.attach([fake.url for fake in engines])
    attempts = [
        fleet.start("engine-0", request_of(plain_ask(PROMPT, 10_000, body=ON), f"a-{n}"))
        for n in range(10)
    ]
    await until(lambda: all(attempt.generated_tokens for attempt in attempts[:8]))
    fleet.abort(attempts[0])
    attempts.append(fleet.start("engine-0", request_of(plain_ask(PROMPT, 10_000), "late")))
    await fleet.close()
    await fleet.close()
    assert all(attempt.end is not None for attempt in attempts)
    ends = [attempt.end.reason for attempt in attempts[1:] if attempt.end is not None]
    assert set(ends) == {EndReason.LOST}
    await until(lambda: asyncio.all_tasks() - before <= _of_the_fakes())
    await until(lambda: _open_files() <= files)


def _open_files() -> int:
    gc.collect()
    return len(os.listdir(Path("/proc/self/fd")))


def _of_the_fakes() -> set["asyncio.Task[object]"]:
    return {task for task in asyncio.all_tasks() if "RequestHandler" in repr(task)}


async def test_an_engine_that_missed_new_weights_gets_nothing_until_it_has_them() -> None:
    plain = FakeVllm(dev=False)
    async with FakeVllm() as other, plain as url:
        fleet = await HttpFleet.attach([url, other], HttpSettings(scrape_s=0.02, revive_s=0.02))
        fleet.expect_weights(7)
        await plain.down()
        await until(lambda: not fleet.engine("engine-0").alive)
        fleet.expect_weights(8)
        await plain.up()
        await until(lambda: fleet.engine("engine-0").alive)
        assert not fleet.is_alive("engine-0")
        assert fleet.is_alive("engine-1")
        fleet.set_weight_version("engine-0", 8)
        assert fleet.is_alive("engine-0")
        await fleet.close()
