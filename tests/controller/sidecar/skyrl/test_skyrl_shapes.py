"""SkyRL 0.4's requests, as its client sends them, through the gateway.

Recorded from `RemoteInferenceClient` and `SkyrlWeightSyncClient`; tests/trainers/skyrl runs those
classes themselves.
"""

import asyncio
from typing import Any

from support.fake_model import reference
from support.gateway import Gateway, gateway

PROMPT = [70, 71, 72, 73]
SAMPLING = {
    "temperature": 1.0,
    "max_tokens": 40,
    "min_tokens": 1,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "logprobs": 1,
    "skip_special_tokens": True,
    "include_stop_str_in_output": True,
    "stop": None,
}


async def generate(g: Gateway, session: str, prompt: list[int] = PROMPT, **params: Any) -> Any:
    body = {
        "sampling_params": SAMPLING | params,
        "model": "fake-model",
        "token_ids": prompt,
        "cache_salt": "weights-3",
    }
    status, told = await g.post("/inference/v1/generate", body, X_Session_ID=session)
    assert status == 200, told
    return told["choices"][0]


async def test_the_answer_has_what_skyrl_reads_of_it() -> None:
    async with gateway(2) as g:
        choice = await generate(g, "trajectory-1")
        tokens = choice["token_ids"]
        assert tokens == reference(PROMPT, 40)[: len(tokens)]
        assert len(choice["logprobs"]["content"]) == len(tokens)
        assert all(entry["logprob"] < 0 for entry in choice["logprobs"]["content"])
        assert choice["finish_reason"] in ("stop", "length")


async def test_later_turns_return_to_the_engine_of_the_first_until_the_session_is_finished() -> (
    None
):
    async with gateway(2) as g:
        for turn in range(3):
            await generate(g, "trajectory-1", PROMPT * (turn + 1), max_tokens=4)
        assert sorted(len(fake.asked) for fake in g.fakes) == [0, 3]
        assert g.desk.arrivals._homes.keys() == {"trajectory-1"}
        url = f"{g.url}/finish_session"
        async with g.client.post(url, params={"session_id": "trajectory-1"}) as answer:
            assert answer.status == 200
        async with g.client.post(url, params={"session_id": "never seen"}) as answer:
            assert answer.status == 200
        assert not g.desk.arrivals._homes


async def test_a_pause_of_every_engine_at_its_own_address_is_a_pause_of_the_fleet() -> None:
    async with gateway(2, token_s=0.002) as g:
        call = asyncio.create_task(generate(g, "t", max_tokens=200, ignore_eos=True))
        while not any(fake.running for fake in g.fakes):
            await asyncio.sleep(0.002)
        engines = [f"/engines/engine-{number}" for number in range(2)]
        for engine in engines:
            answer = await g.post(f"{engine}/pause?mode=keep&clear_cache=false", None)
            assert answer == (200, {"status": "paused"})
        assert g.desk.paused
        assert not call.done()
        for path, body in (
            ("/start_weight_update", None),
            ("/update_weights", {"update_info": {"names": ["w"]}}),
            ("/finish_weight_update", None),
            ("/reset_prefix_cache", {"reset_running_requests": False}),
            ("/resume", None),
        ):
            for engine in engines:
                assert (await g.post(engine + path, body))[0] == 200
        assert not g.desk.paused
        assert g.desk.pace.weight_version == 1
        assert len((await call)["token_ids"]) == 200


async def test_what_comes_with_routed_experts_goes_to_one_engine_as_it_is() -> None:
    async with gateway(2) as g:
        body = {"sampling_params": SAMPLING, "token_ids": PROMPT, "return_sample_support": True}
        status, told = await g.post("/skyrl/v1/generate", body, X_Session_ID="t")
        # engines of vLLM's own have no such route, and say so themselves
        assert (status, told["error"]["message"]) == (404, "Not Found")
