"""Requests through the gateway: answered as an engine would, whatever happens behind it."""

import asyncio
import gc
from typing import Any

import aiohttp
import msgspec
import pytest
from support import fake_wire
from support.fake_model import encode, reference, text_of
from support.gateway import Gateway, gateway

from steersman.controller.gateway.arrivals import BURST
from steersman.controller.gateway.families import MAX_MEMBERS
from steersman.controller.trace import records
from steersman.estimators.lifecycle import Phase
from steersman.mechanisms.execution import ToParking

COMPLETIONS, CHAT, GENERATE = (
    "/v1/completions",
    "/v1/chat/completions",
    "/inference/v1/generate",
)
PROMPT = list(range(40, 60))
SLOW = 0.003
"""Seconds per token where a test acts in the middle of an answer."""


def asks(length: int, **more: Any) -> dict[str, Any]:
    """A request for so many tokens, whatever they are."""
    return {
        "model": "fake-model",
        "prompt": PROMPT,
        "max_tokens": length,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


def plain(answer: Any) -> Any:
    """An answer without what differs from one call to the next."""
    return {k: v for k, v in answer.items() if k not in ("id", "created", "request_id")}


async def until(gate: Gateway, written: int) -> None:
    """Wait until some trajectory is known to have written so much."""
    while not any(e.generated_tokens >= written for e in gate.running()):
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, asks(40)),
        (COMPLETIONS, asks(40, n=3, logprobs=2)),
        (COMPLETIONS, asks(40, prompt=[PROMPT, [7, 8, 9]], n=2)),
        (COMPLETIONS, asks(40, prompt="the end of", return_token_ids=False)),
        (COMPLETIONS, asks(40, echo=True)),
        (COMPLETIONS, asks(300, ignore_eos=False, stop=["ing", "on a"])),
        (
            CHAT,
            {
                "model": "fake-model",
                "messages": [{"role": "user", "content": "on the edge"}],
                "max_tokens": 30,
                "logprobs": True,
                "top_logprobs": 2,
            },
        ),
        (GENERATE, {"token_ids": PROMPT, "sampling_params": {"max_tokens": 30}}),
        (COMPLETIONS, {"model": "fake-model", "max_tokens": 4}),
        (COMPLETIONS, asks(40, model="another")),
        (COMPLETIONS, asks(0)),
    ],
)
async def test_an_answer_is_the_engine_s_own(path: str, body: dict[str, Any]) -> None:
    async with gateway(2) as gate:
        status, answer = await gate.post(path, body)
        async with gate.client.post(gate.fakes[0].url + path, json=body) as direct:
            assert (status, plain(answer)) == (direct.status, plain(await direct.json()))


DETAILS = {"cached_tokens": 2, "created_cache_tokens": None, "multimodal_tokens": None}


@pytest.mark.parametrize("details", [None, DETAILS])
async def test_a_usage_is_waited_for_as_long_as_it_tells_more_than_counts(
    details: dict[str, int | None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("usage", "chunk_usage"):
        counted = getattr(fake_wire, name)
        told = {} if details is None else {"prompt_tokens_details": details}
        monkeypatch.setattr(fake_wire, name, lambda p, c, of=counted, told=told: of(p, c) | told)
    body = asks(40)
    async with gateway(1) as gate:
        answers = [(await gate.post(COMPLETIONS, body))[1] for _ in range(3)]
        asked = ["stream_options" in told for _, told in gate.fakes[0].asked]
        async with gate.client.post(gate.fakes[0].url + COMPLETIONS, json=body) as direct:
            wanted = plain(await direct.json())
    assert [plain(answer) for answer in answers] == [wanted] * 3
    assert wanted["usage"]["prompt_tokens_details"] == details
    assert asked == ([True, False, False] if details is None else [True] * 3)


async def test_an_answered_request_leaves_nothing_for_the_garbage_collector() -> None:
    async with gateway(2) as gate:
        for _ in range(10):
            await gate.post(COMPLETIONS, asks(40))
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await gate.post(COMPLETIONS, asks(40))
            assert gc.collect() < 20
        finally:
            gc.enable()


async def test_a_stream_has_the_engine_s_chunks() -> None:
    body = asks(40, n=2, stream_options={"include_usage": True})
    async with gateway(2) as gate:
        events = await gate.events(COMPLETIONS, body)
        async with gate.client.post(
            gate.fakes[0].url + COMPLETIONS, json={**body, "stream": True}
        ) as direct:
            wanted = (await direct.text()).split("\n\n")
    direct_events = [event.removeprefix("data: ") for event in wanted if event]
    for index in range(2):
        assert joined(events, index) == joined(direct_events, index)
    assert events[-1] == "[DONE]"
    usage = msgspec.json.decode(events[-2])["usage"]
    assert usage == msgspec.json.decode(direct_events[-2])["usage"]


def joined(events: list[str], index: int) -> Any:
    """One choice's chunks put together: an engine makes them as large as it likes."""
    chunks = [msgspec.json.decode(event) for event in events if event != "[DONE]"]
    own = [c for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
    choices = [chunk["choices"][0] for chunk in own]
    return (
        {tuple(sorted(chunk)) for chunk in own},
        {tuple(sorted(choice)) for choice in choices},
        "".join(choice["text"] for choice in choices),
        [token for choice in choices for token in choice["token_ids"]],
        [choice["prompt_token_ids"] for choice in choices if choice["prompt_token_ids"]],
        [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
    )


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_that_is_moved_twice_is_answered_as_if_nothing_had_happened(
    streamed: bool,
) -> None:
    length = 400
    async with gateway(2, token_s=SLOW) as gate:
        body = asks(length, logprobs=0)
        asking = gate.events(COMPLETIONS, body) if streamed else gate.post(COMPLETIONS, body)
        answering = asyncio.create_task(asking)  # type: ignore[var-annotated, arg-type]
        for written in (40, 110):
            await until(gate, written)
            (execution,) = gate.running()
            assert gate.move(execution)
            while execution.phase is Phase.LEAVING:
                await asyncio.sleep(0.002)
        answer = await answering
        assert execution.moves == 2
        async with gate.client.post(gate.fakes[0].url + COMPLETIONS, json=body) as direct:
            undisturbed = (await direct.json())["choices"][0]
    tokens = reference(PROMPT, length, ignore_eos=True)
    if streamed:
        chunks = [msgspec.json.decode(e)["choices"][0] for e in answer if e != "[DONE]"]
        assert [t for chunk in chunks for t in chunk["token_ids"]] == tokens
        assert "".join(chunk["text"] for chunk in chunks) == undisturbed["text"]
        offsets = [o for chunk in chunks for o in chunk["logprobs"]["text_offset"]]
        assert offsets == undisturbed["logprobs"]["text_offset"]
        assert [c["finish_reason"] for c in chunks if c["finish_reason"]] == ["length"]
    else:
        status, whole = answer
        assert status == 200
        assert whole["choices"] == [undisturbed]
        assert whole["choices"][0]["token_ids"] == tokens
        assert whole["usage"]["completion_tokens"] == length


async def test_an_engine_that_dies_takes_nothing_along() -> None:
    async with gateway(2, token_s=SLOW) as gate:
        body = asks(200)
        answering = [asyncio.create_task(gate.post(COMPLETIONS, body)) for _ in range(6)]
        await until(gate, 64)
        victim = gate.running()[0].replica
        await gate.fakes[int((victim or "")[-1])].down()
        answers = await asyncio.gather(*answering)
        assert [status for status, _ in answers] == [200] * 6
        tokens = reference(PROMPT, 200, ignore_eos=True)
        assert all(answer["choices"][0]["token_ids"] == tokens for _, answer in answers)
        assert gate.desk.ledger.attempt_ends["lost"] == 3
        assert gate.desk.ledger.counts().dispositions == {"truncated": 6}


async def test_what_cannot_be_continued_begins_again_and_says_so() -> None:
    async with gateway(2, token_s=SLOW) as gate:
        body = asks(150, presence_penalty=0.5, steersman={"info": True})
        answering = asyncio.create_task(gate.post(COMPLETIONS, body))
        await until(gate, 64)
        (execution,) = gate.running()
        assert not gate.move(execution), "it must not be moved"
        await gate.fakes[int((execution.replica or "")[-1])].down()
        status, answer = await answering
        assert status == 200
        assert answer["choices"][0]["token_ids"] == reference(PROMPT, 150, ignore_eos=True)
        assert answer["steersman"]["correctness"] == "empirical"


async def test_the_answer_tells_where_it_was_written_if_asked() -> None:
    async with gateway(2) as gate:
        _, answer = await gate.post(COMPLETIONS, asks(20, n=2, steersman=True))
        samples = answer["steersman"]["samples"]
        assert [s["segments"][0]["end"] for s in samples] == [20, 20]
        assert {s["segments"][0]["engine"] for s in samples} == {"engine-0", "engine-1"}
        assert answer["steersman"]["correctness"] == "exact"
        _, without = await gate.post(COMPLETIONS, asks(20))
        assert "steersman" not in without
        assert all("steersman" not in body for fake in gate.fakes for _, body in fake.asked)


async def test_a_client_that_goes_away_has_its_request_aborted() -> None:
    async with gateway(1, token_s=SLOW) as gate:
        asking = asyncio.create_task(gate.post(COMPLETIONS, asks(5000)))
        await until(gate, 32)
        asking.cancel()
        while gate.fakes[0].running or gate.desk.questions:
            await asyncio.sleep(0.002)
        assert gate.desk.ledger.counts().dispositions == {"abandoned": 1}


async def test_siblings_of_requests_whose_clients_went_away_are_answered() -> None:
    async with gateway(2, token_s=SLOW) as gate:
        gone = [asyncio.create_task(gate.post(COMPLETIONS, asks(400))) for _ in range(3)]
        await until(gate, 1)
        for asking in gone[:2]:
            asking.cancel()
        while len(gate.desk.questions) > 1:
            await asyncio.sleep(0.002)
        answers = await asyncio.gather(*(gate.post(COMPLETIONS, asks(20)) for _ in range(3)))
        assert [status for status, _ in answers] == [200] * 3
        assert (await gone[2])[0] == 200
        (group,) = gate.desk.ledger.groups.values()
        assert (group.size, len(group.slots)) == (4, 6)


async def test_requests_for_one_prompt_are_one_group_and_a_new_step_begins_others() -> None:
    async with gateway(2) as gate:
        for step in (0, 0, 1):
            body = asks(4, steersman={"step": step})
            await asyncio.gather(*(gate.post(COMPLETIONS, body) for _ in range(3)))
        admitted = [r for r in gate.trace.records if isinstance(r, records.GroupAdmitted)]
        assert [r.step for r in admitted] == [0, 1]
        assert [len(g.slots) for g in gate.desk.ledger.groups.values()] == [6, 3]


async def test_too_many_open_requests_are_turned_away_with_a_time_to_come_back() -> None:
    async with gateway(1, "gateway.max_queue=1", token_s=SLOW, max_num_seqs=2) as gate:
        engine = gate.desk.fleet.replicas[0]
        limit = engine.max_num_seqs + 1
        asking = [asyncio.create_task(gate.post(COMPLETIONS, asks(100))) for _ in range(limit)]
        while len(gate.desk.questions) < limit:
            await asyncio.sleep(0.002)
        async with gate.client.post(gate.url + COMPLETIONS, json=asks(5)) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            assert "the limit is" in (await response.json())["error"]["message"]
        assert [status for status, _ in await asyncio.gather(*asking)] == [200] * limit


async def test_a_controller_that_fails_leaves_the_default_rule_in_charge() -> None:
    def spoil(controller: Any) -> None:
        def decide(observation: object) -> object:
            raise RuntimeError("spoiled")

        controller.decide = decide

    async with gateway(2, spoil=spoil) as gate:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        status, answer = await gate.post(COMPLETIONS, asks(20, n=BURST + 1))
        assert loop.time() - started_s < 1.0
        assert (status, len(answer["choices"])) == (200, BURST + 1)
        assert gate.desk.loop.state.value in ("fail_open", "off")


async def test_without_an_engine_a_request_is_turned_away_at_once() -> None:
    async with gateway(1) as gate:
        await gate.fakes[0].down()
        while gate.desk.fleet.is_alive("engine-0"):
            await asyncio.sleep(0.01)
        status, answer = await gate.post(COMPLETIONS, asks(5))
        assert (status, answer["error"]["message"]) == (503, "no engine is alive")


async def test_draining_answers_what_is_open_and_takes_nothing_new() -> None:
    async with gateway(1, token_s=SLOW) as gate:
        asking = asyncio.create_task(gate.post(COMPLETIONS, asks(60)))
        await until(gate, 1)
        draining = asyncio.create_task(gate.desk.drain(10))
        await asyncio.sleep(0)
        assert (await gate.post(COMPLETIONS, asks(5)))[0] == 503
        assert (await asking)[0] == 200
        assert await draining == 0


async def test_what_is_still_open_at_the_end_of_a_drain_gets_its_partial_answer() -> None:
    async with gateway(1, token_s=SLOW) as gate:
        asking = asyncio.create_task(gate.post(COMPLETIONS, asks(5000)))
        await until(gate, 32)
        assert await gate.desk.drain(0.01) == 1
        status, answer = await asking
        choice = answer["choices"][0]
        assert (status, choice["finish_reason"]) == (200, "abort")
        assert choice["token_ids"] == reference(PROMPT, len(choice["token_ids"]), ignore_eos=True)
        assert len(choice["token_ids"]) >= 32


async def test_while_the_trainer_has_paused_the_fleet_requests_wait_and_no_time_passes() -> None:
    async with gateway(2) as gate:
        gate.desk.pause("keep")
        asking = asyncio.create_task(gate.post(COMPLETIONS, asks(5)))
        while not gate.desk.questions:
            await asyncio.sleep(0.002)
        now_s = gate.desk.now_s()
        await asyncio.sleep(0.3)
        assert gate.desk.now_s() == now_s
        assert not gate.running()
        gate.desk.resume()
        assert (await asking)[0] == 200


async def test_what_is_parked_goes_on_when_nothing_else_is_in_flight() -> None:
    async with gateway(2, "gateway.may_defer=true", token_s=SLOW) as gate:
        answering = [asyncio.create_task(gate.post(COMPLETIONS, asks(n))) for n in (60, 120)]
        await until(gate, 32)
        first, *_ = gate.running()
        assert first.leave(ToParking(), "the test parks it")
        for status, answer in await asyncio.gather(*answering):
            assert status == 200
            tokens = answer["choices"][0]["token_ids"]
            assert tokens == reference(PROMPT, len(tokens), ignore_eos=True)
        assert gate.desk.ledger.counts().deferrals == 1


async def test_a_slow_client_stops_nobody_else() -> None:
    async with gateway(1) as gate:
        body = asks(20_000, stream=True)
        async with gate.client.post(gate.url + COMPLETIONS, json=body) as slow:
            others = await asyncio.gather(*(gate.post(COMPLETIONS, asks(20)) for _ in range(20)))
            assert [status for status, _ in others] == [200] * 20
            text = await slow.text()
        chunks = [e.removeprefix("data: ") for e in text.split("\n\n") if e][:-1]
        tokens = [t for c in chunks for t in msgspec.json.decode(c)["choices"][0]["token_ids"]]
        assert tokens == reference(PROMPT, 20_000, ignore_eos=True)


async def test_what_the_gateway_does_not_know_is_passed_on_as_it_is() -> None:
    async with gateway(1) as gate:
        status, answer = await gate.post("/v1/embeddings", {"input": "x"})
        async with gate.client.post(gate.fakes[0].url + "/v1/embeddings", json={}) as direct:
            assert status == direct.status
        for bad in (b"{", b"[]", b'"x"', b"\xff"):
            async with (
                gate.client.post(gate.url + COMPLETIONS, data=bad) as through,
                gate.client.post(gate.fakes[0].url + COMPLETIONS, data=bad) as direct,
            ):
                assert (through.status, await through.read()) == (
                    direct.status,
                    await direct.read(),
                )
    del answer


async def test_a_mistyped_field_of_the_gateway_s_own_is_refused_and_named() -> None:
    async with gateway(1) as gate:
        status, answer = await gate.post(COMPLETIONS, asks(5, steersman={"grup": "a"}))
        assert status == 400
        assert "grup" in answer["error"]["message"]


async def test_the_text_of_a_moved_request_has_no_seam_in_the_middle_of_a_character() -> None:
    async with gateway(2, token_s=SLOW) as gate:
        prompt = encode("St")
        for _ in range(4):
            body = asks(150, prompt=prompt)
            answering = asyncio.create_task(gate.post(COMPLETIONS, body))
            for written in (20, 50, 90):
                await until(gate, written)
                gate.move(gate.running()[0])
            _, answer = await answering
            assert answer["choices"][0]["text"] == text_of(reference(prompt, 150, ignore_eos=True))
            assert isinstance(gate.client, aiohttp.ClientSession)


async def test_rewards_make_groups_that_teach_nothing_known() -> None:
    async with gateway(2) as gate:
        _, answer = await gate.post(COMPLETIONS, asks(8, n=2, steersman=True))
        ids = [sample["trajectory_id"] for sample in answer["steersman"]["samples"]]
        told = {"rewards": [{"trajectory_id": i, "reward": 1.0} for i in ids]}
        assert await gate.post("/steersman/rewards", told) == (200, {"taken": 2})
        assert [r.reward for r in gate.trace.records if isinstance(r, records.Rewarded)] == [1, 1]
        told["rewards"][1]["trajectory_id"] = 99
        status, answer = await gate.post("/steersman/rewards", told)
        assert status == 400
        assert "trajectory 99" in answer["error"]["message"]
        assert (await gate.post("/steersman/rewards", {"reward": 1}))[0] == 400
        assert len([r for r in gate.trace.records if isinstance(r, records.Rewarded)]) == 2


async def test_a_prompt_that_is_always_in_flight_does_not_keep_everything_that_ended() -> None:
    async with gateway(2, token_s=SLOW) as gate:
        asking = asyncio.create_task(gate.post(COMPLETIONS, asks(3000)))
        await until(gate, 1)
        for _ in range(MAX_MEMBERS // 64 + 1):
            await gate.post(COMPLETIONS, asks(1, n=64))
        assert sorted(len(g.slots) for g in gate.desk.ledger.groups.values()) == [64, 513]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
