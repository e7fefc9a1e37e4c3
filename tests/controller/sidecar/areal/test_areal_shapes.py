"""AReaL 1.0.4's requests, as its vLLM backend builds them, at the gateway's ports of engines.

tests/trainers/areal runs the engine and backend classes themselves.
"""

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from support.fake_model import reference
from support.gateway import Gateway, gateway

from steersman.controller.sidecar import areal
from steersman.estimators.errors import InvalidInputError

BODY = {
    "top_p": 1.0,
    "top_k": 100_000_000,
    "max_tokens": 300,
    "temperature": 1.0,
    "stop_token_ids": [],
    "ignore_eos": True,
    "skip_special_tokens": True,
    "return_tokens_as_token_ids": True,
    "logprobs": 0,
    "use_beam_search": False,
    "stream": False,
    "prompt": [70, 71, 72],
}
KNOBS: dict[str, Any] = {"areal": True, "dev": False}


async def post(g: Gateway, address: str, path: str, body: Any) -> tuple[int, Any]:
    async with g.client.post(address + path, json=body) as answer:
        return answer.status, await answer.json()


def tokens_of(told: Any) -> list[int]:
    """As `VLLMBackend.parse_generation_response` reads them."""
    logprobs = told["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["tokens"])
    return [int(token.split(":")[1]) for token in logprobs["tokens"]]


async def test_each_port_takes_requests_and_the_gateway_places_them() -> None:
    async with gateway(2, "gateway.shadow_ports=true", token_s=0.001, **KNOBS) as g:
        calls = [post(g, g.shadows[0], "/v1/completions", BODY) for _ in range(4)]
        for status, told in await asyncio.gather(*calls):
            assert status == 200
            assert tokens_of(told) == reference([70, 71, 72], 300, ignore_eos=True)
            assert told["choices"][0]["finish_reason"] == "length"
        asked = [[path for path, _ in fake.asked] for fake in g.fakes]
        assert [paths.count("/v1/completions") for paths in asked] == [2, 2]


async def test_its_pause_gives_back_partial_answers_which_its_next_request_carries_on() -> None:
    async with gateway(2, "gateway.shadow_ports=true", token_s=0.002, **KNOBS) as g:
        call = asyncio.create_task(post(g, g.shadows[0], "/v1/completions", BODY))
        while not any(e.attempt and e.attempt.generated_tokens for e in g.running()):
            await asyncio.sleep(0.002)
        pauses = [post(g, a, "/areal_pause_generation", {}) for a in g.shadows]
        assert [status for status, _ in await asyncio.gather(*pauses)] == [200, 200]
        status, told = await call
        assert (status, told["choices"][0]["finish_reason"]) == (200, "abort")
        begun = tokens_of(told)
        assert g.desk.paused
        assert 0 < len(begun) < 300
        for path, body in (
            ("/areal_set_update_weight_meta", {"names": ["w"], "group_name": "g"}),
            ("/areal_update_weights_xccl", {}),
        ):
            for address in g.shadows:
                assert (await post(g, address, path, body))[0] == 200
        assert g.desk.pace.weight_version == 0
        for address in g.shadows:
            assert (await post(g, address, "/areal_continue_generation", {}))[0] == 200
        assert (g.desk.paused, g.desk.pace.weight_version) == (False, 1)
        rest = BODY | {"prompt": [70, 71, 72, *begun], "max_tokens": 300 - len(begun)}
        _, told = await post(g, g.shadows[0], "/v1/completions", rest)
        assert begun + tokens_of(told) == reference([70, 71, 72], 300, ignore_eos=True)


async def test_a_call_at_a_port_reaches_that_engine_alone() -> None:
    async with gateway(2, "gateway.shadow_ports=true", **KNOBS) as g:
        body = {"master_address": "10.0.0.9", "rank_offset": 2, "world_size": 3}
        path = "/areal_init_weights_update_group"
        assert (await post(g, g.shadows[1], path, body))[0] == 200
        assert [fake.updates for fake in g.fakes] == [[], [(path, body)]]


class Info(NamedTuple):
    """`LocalInfServerInfo`."""

    host: str
    port: int
    process: Any


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A controller with AReaL's signature, and what it was started with."""
    api = ModuleType("areal.api")
    api.LocalInfServerInfo = Info  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "areal", ModuleType("areal"))
    monkeypatch.setitem(sys.modules, "areal.api", api)
    got: list[Any] = []

    class Controller:
        rollout_alloc = SimpleNamespace(parallel=SimpleNamespace(dp_size=2))

        def initialize(
            self, role: str, server_args: Any = None, server_infos: Any = None, *args: Any
        ) -> None:
            got.append((role, server_args, server_infos))

    areal.install(["10.0.0.1:8101", "[::1]:8102"], Controller)
    return Controller(), got


def test_one_controller_connects_its_workers_to_the_gateways_ports(installed: Any) -> None:
    controller, got = installed
    controller.initialize(role="rollout", server_args={"model": "m"})
    infos = [Info("10.0.0.1", 8101, None), Info("::1", 8102, None)]
    assert got == [("rollout", {"model": "m"}, infos)]


def test_as_many_workers_as_addresses_are_asked_for(installed: Any) -> None:
    controller, _ = installed
    controller.rollout_alloc.parallel.dp_size = 3
    try:
        with pytest.raises(InvalidInputError, match="3 rollout workers and the gateway has 2 addr"):
            controller.initialize("rollout")
    finally:
        controller.rollout_alloc.parallel.dp_size = 2


@pytest.mark.parametrize("address", ["8101", "http://10.0.0.1:8101", ":8101", "10.0.0.1:"])
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(InvalidInputError, match="is no address; valid: HOST:PORT"):
        areal.install([address])
