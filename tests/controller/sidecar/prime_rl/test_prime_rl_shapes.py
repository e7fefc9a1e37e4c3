"""prime-rl's requests (559b447, verifiers 0.4.0, renderers 0.1.12) through the gateway.

The requests for tokens are those of `renderers.client.generate`, control is that of
`prime_rl/utils/client.py`.
"""

import asyncio
from pathlib import Path

import pytest
from support.fake_model import reference
from support.fake_vllm import FakeVllm
from support.gateway import gateway

EXAMPLE = Path(__file__).parents[4] / "examples" / "attach_prime_rl.toml"
BODY = {
    "model": "fake-model",
    "token_ids": [70, 71, 72],
    "sampling_params": {
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 60,
        "stop_token_ids": [2],
        "logprobs": 1,
        "skip_special_tokens": False,
    },
    "cache_salt": "3",
}
ADMIN = [f"/engines/engine-{number}" for number in range(2)]


async def test_a_turn_has_token_ids_and_a_logprob_for_each() -> None:
    async with gateway(2) as g:
        status, told = await g.post("/inference/v1/generate", BODY, X_Session_ID="trace-1")
        choice = told["choices"][0]
        assert (status, choice["finish_reason"] in ("stop", "length")) == (200, True)
        assert choice["token_ids"] == reference([70, 71, 72], 60)[: len(choice["token_ids"])]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
        assert told["request_id"]
        status, models = await _get(g.client, g.url + "/v1/models")
        assert models["data"][0]["max_model_len"] == 32768


async def test_new_weights_come_over_the_admin_addresses_while_requests_are_kept() -> None:
    async with gateway(2, token_s=0.002) as g:
        body = BODY | {"sampling_params": BODY["sampling_params"] | {"ignore_eos": True}}
        calls = [asyncio.create_task(g.post("/inference/v1/generate", body)) for _ in range(4)]
        while sum(fake.running for fake in g.fakes) < 4:
            await asyncio.sleep(0.002)
        pauses = [g.post(f"{a}/pause?mode=keep&clear_cache=false", None) for a in ADMIN]
        assert [status for status, _ in await asyncio.gather(*pauses)] == [200, 200]
        assert g.desk.paused
        weights = [g.post(f"{a}/update_weights", {"weight_dir": "/w/step_4"}) for a in ADMIN]
        assert [status for status, _ in await asyncio.gather(*weights)] == [200, 200]
        assert g.desk.pace.weight_version == 0
        resumes = [g.post(f"{a}/resume", None) for a in ADMIN]
        assert [status for status, _ in await asyncio.gather(*resumes)] == [200, 200]
        assert (g.desk.paused, g.desk.pace.weight_version) == (False, 1)
        for status, told in await asyncio.gather(*calls):
            assert (status, len(told["choices"][0]["token_ids"])) == (200, 60)


async def test_its_one_key_must_be_the_control_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "data")
    monkeypatch.setenv("STEERSMAN_ADMIN_TOKEN", "admin")
    async with gateway(1) as g:
        for key, requests, control in (("data", 200, 403), ("admin", 200, 200)):
            told = {"Authorization": f"Bearer {key}"}
            status, _ = await g.post("/inference/v1/generate", BODY, **told)
            assert status == requests
            status, _ = await g.post("/engines/engine-0/pause?mode=keep", None, **told)
            assert status == control


async def test_routes_of_its_own_engines_reach_them_and_are_missed_where_they_are_not() -> None:
    async with gateway(1) as g:
        for path in ("/init_broadcaster", "/load_lora_adapter"):
            status, told = await g.post(f"/engines/engine-0{path}", {"host": "10.0.0.9"})
            assert (status, told["error"]["message"]) == (404, "Not Found")


async def test_each_engines_metrics_are_its_own() -> None:
    async with gateway([FakeVllm(model="fake-model"), FakeVllm()]) as g:
        for address in ADMIN:
            async with g.client.get(f"{g.url}{address}/metrics") as answer:
                assert "vllm:num_requests_running" in await answer.text()


def test_the_example_changes_three_lines() -> None:
    changed = [
        line
        for line in EXAMPLE.read_text().splitlines()
        if line and not line.startswith(("#", "["))
    ]
    assert [line.split(" =")[0] for line in changed] == [
        "base_url",
        "admin_base_url",
        "api_key_var",
    ]


async def _get(client, url):  # type: ignore[no-untyped-def]
    async with client.get(url) as answer:
        return answer.status, await answer.json()
