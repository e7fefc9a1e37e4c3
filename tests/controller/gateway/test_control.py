"""The control plane: passed to all engines or to one, answered as by one, and understood."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from steersman.controller.gateway import control, security
from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.keys import DESK, SETTINGS
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.shadow import PORTS
from steersman.estimators.errors import FleetError
from steersman.mechanisms.http_vllm.ask import Abilities, Answer


@dataclass
class FakeEngine:
    """What it was asked, and what it will answer."""

    name: str
    answers: dict[str, Any] = field(default_factory=dict)
    """Path -> body, (status, body), or an exception."""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    params: list[tuple[str, str]] = field(default_factory=list)
    alive: bool = True
    stale: bool = False
    paused: bool = False
    weight_version: int = 0
    abilities: Abilities = field(default_factory=lambda: Abilities(developer=True))
    gate: asyncio.Event | None = None
    """It answers once this is set."""


@dataclass
class FakeFleet:
    """Engines without a network."""

    engines: list[FakeEngine]

    @property
    def replicas(self) -> list[FakeEngine]:
        return self.engines

    def engine(self, name: str) -> FakeEngine:
        return next(engine for engine in self.engines if engine.name == name)

    def is_alive(self, name: str) -> bool:
        return self.engine(name).alive

    def set_paused(self, name: str, paused: bool) -> None:
        self.engine(name).paused = paused

    def set_weight_version(self, name: str, version: int) -> None:
        self.engine(name).weight_version = version

    async def request(
        self,
        name: str,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        params: Sequence[tuple[str, str]],
    ) -> Answer:
        engine = self.engine(name)
        engine.calls.append((method, path, json.loads(body) if body else None))
        engine.params = list(params)
        if engine.gate is not None:
            await engine.gate.wait()
        answer = engine.answers.get(path, {"message": "done"})
        if isinstance(answer, Exception):
            raise answer
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        return Answer(status, json.dumps(value).encode())


class FakeDesk:
    """Writes down what it is told."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet, self.paused, self.draining = fleet, False, False
        self.pace = SimpleNamespace(weight_version=0)
        self.told: list[Any] = []

    def pause(self, mode: str) -> None:
        self.paused = True
        self.told.append(("pause", mode))

    def resume(self) -> None:
        self.paused = False
        self.told.append("resume")

    def weights_changed(self, version: int | None) -> None:
        self.pace.weight_version += 1
        if version is not None:
            self.pace.weight_version = version
        self.told.append(("weights", self.pace.weight_version))

    def abort(self, ids: Iterable[str] | None) -> int:
        self.told.append(("abort", None if ids is None else list(ids)))
        return 5


@dataclass
class Gateway:
    """What a test holds."""

    desk: FakeDesk
    engines: list[FakeEngine]
    client: aiohttp.ClientSession
    open_port: Callable[[str], Any]

    async def call(
        self, path: str, body: Any = None, method: str = "POST", base: str = ""
    ) -> tuple[int, Any]:
        """Status and body of an answer."""
        async with self.client.request(method, base + path, json=body) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def get(self, path: str) -> tuple[int, Any]:
        return await self.call(path, method="GET")

    def paths(self, index: int = 0) -> list[str]:
        """What an engine was asked."""
        return [path for _, path, _ in self.engines[index].calls]


async def steered(request: web.Request) -> web.Response:
    """Stands for whatever the desk answers."""
    return web.Response(text="steered")


@asynccontextmanager
async def gateway(engines: int = 2, **settings: Any) -> AsyncIterator[Gateway]:
    fleet = FakeFleet([FakeEngine(f"engine-{i}") for i in range(engines)])
    desk, config = FakeDesk(fleet), GatewayConfig(**settings)
    app = web.Application(middlewares=security.middlewares(config, security.Tokens()))
    app[DESK], app[SETTINGS], app[PORTS] = cast(Desk, desk), config, {}
    app.router.add_post("/v1/completions", steered)
    control.add_routes(app)
    app.router.add_get("/metrics", steered)
    app.router.add_route("*", "/{path:.*}", steered)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def open_port(engine: str) -> str:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[-1][1]
        app[PORTS][port] = engine
        return f"http://127.0.0.1:{port}"

    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession(url) as client:
            yield Gateway(desk, fleet.engines, client, open_port)
    finally:
        await runner.cleanup()


# To all engines


async def test_a_call_goes_to_every_living_engine_with_its_body_and_parameters() -> None:
    async with gateway(3) as g:
        g.engines[1].alive = False
        async with g.client.post("/start_weight_update?x=1&x=2", json={"a": 1}) as response:
            assert (response.status, await response.json()) == (200, {"message": "done"})
            assert response.headers["X-Steersman-Engines"] == "engine-0, engine-2"
            assert response.headers["X-Steersman-Dead"] == "engine-1"
        assert (
            g.engines[0].calls == g.engines[2].calls == [("POST", "/start_weight_update", {"a": 1})]
        )
        assert g.engines[0].params == [("x", "1"), ("x", "2")]
        assert not g.engines[1].calls


async def test_engines_are_asked_at_the_same_time() -> None:
    async with gateway() as g:
        gate = asyncio.Event()
        for engine in g.engines:
            engine.gate = gate
        call = asyncio.create_task(g.call("/update_weights", {"update_info": {}}))
        while not all(engine.calls for engine in g.engines):
            await asyncio.sleep(0)
        gate.set()
        assert (await call)[0] == 200


async def test_a_failure_of_one_engine_is_told_with_its_name() -> None:
    async with gateway() as g:
        g.engines[1].answers["/update_weights"] = FleetError("connection refused")
        status, body = await g.call("/update_weights", {"update_info": {}})
        assert status == 502
        assert (
            "1 of 2 engines failed: engine-1 answered 502: engine-1 cannot be reached"
            in (body["error"]["message"])
        )
        assert body["results"]["engine-0"]["status"] == 200


async def test_an_engine_that_does_not_answer_is_named_before_the_request_times_out() -> None:
    async with gateway(request_timeout_s=0.2) as g:
        g.engines[1].gate = asyncio.Event()
        status, body = await g.call("/start_weight_update")
        assert status == 502
        assert "engine-1 did not answer within 0.18 s" in body["error"]["message"]


async def test_without_a_living_engine_control_is_to_be_tried_again() -> None:
    async with gateway(1) as g:
        g.engines[0].alive = False
        for method, path in (("POST", "/pause"), ("GET", "/version")):
            async with g.client.request(method, path) as response:
                assert response.status == 503
                assert response.headers["Retry-After"] == "2"


async def test_a_call_is_carried_out_to_its_end_when_the_trainer_hangs_up() -> None:
    async with gateway() as g:
        gate = asyncio.Event()
        g.engines[0].gate = gate
        with pytest.raises(TimeoutError):
            async with g.client.post("/pause", timeout=aiohttp.ClientTimeout(0.05)):
                pass
        gate.set()
        while not g.desk.paused or not g.engines[0].paused:
            await asyncio.sleep(0)
        assert g.desk.told == [("pause", "abort")]


async def test_the_fleet_is_one_engine_with_all_the_workers() -> None:
    async with gateway(3) as g:
        for engine, size in zip(g.engines, (2, 1, 4), strict=True):
            engine.answers["/get_world_size"] = {"world_size": size}
        assert await g.get("/get_world_size?include_dp=true") == (200, {"world_size": 7})
        info = {"master_address": "a", "rank_offset": 1, "world_size": 8}
        status, _ = await g.call("/init_weight_transfer_engine", {"init_info": info})
        assert status == 200
        ranks = [engine.calls[-1][2]["init_info"]["rank_offset"] for engine in g.engines]
        assert ranks == [1, 3, 4]
        assert g.engines[1].calls[-1][2]["init_info"] == {**info, "rank_offset": 3}


async def test_ranks_are_not_guessed_where_an_engine_does_not_tell_its_size() -> None:
    async with gateway() as g:
        g.engines[0].answers["/get_world_size"] = {"world_size": 1}
        g.engines[1].answers["/get_world_size"] = (404, {})
        status, body = await g.call(
            "/init_weight_transfer_engine", {"init_info": {"rank_offset": 1}}
        )
        assert status == 502
        assert "engine-1 does not tell its world size: 404" in body["error"]["message"]
        assert "/init_weight_transfer_engine" not in g.paths(0)


async def test_an_init_without_ranks_is_passed_as_it_is() -> None:
    async with gateway() as g:
        await g.call("/init_weight_transfer_engine", {"init_info": {}})
        assert g.paths() == ["/init_weight_transfer_engine"]


async def test_what_describes_the_engines_is_asked_of_one_in_turn() -> None:
    async with gateway(3) as g:
        for _ in range(3):
            assert (await g.get("/v1/models"))[0] == 200
        assert [g.paths(i) for i in range(3)] == [["/v1/models"]] * 3
        g.engines[0].answers["/version"] = FleetError("it has just died")
        assert await g.get("/version") == (200, {"message": "done"})


async def test_a_trainers_own_routes_are_passed_where_they_are_named() -> None:
    async with gateway(control_paths=("/init_broadcaster",)) as g:
        assert (await g.call("/init_broadcaster", {"host": "a"}))[0] == 200
        assert g.paths(0) == g.paths(1) == ["/init_broadcaster"]


@pytest.mark.parametrize("path", ["/init_broadcaster", "/pause/", "/x//pause", "/v1/completions/"])
async def test_a_route_that_is_not_known_reaches_no_engine(path: str) -> None:
    async with gateway() as g:
        status, body = await g.call(path)
        assert status == 404
        assert "gateway.control_paths" in body["error"]["message"]
        assert not g.engines[0].calls


async def test_further_requests_for_output_are_left_to_the_desk() -> None:
    async with gateway() as g:
        assert await g.call("/v1/embeddings") == (200, "steered")


async def test_health_is_good_while_an_engine_lives_and_requests_are_taken_in() -> None:
    async with gateway() as g:
        g.engines[0].alive = False
        assert (await g.get("/health"))[0] == 200
        g.desk.draining = True
        assert (await g.get("/health"))[0] == 503
        g.desk.draining, g.engines[1].alive = False, False
        assert (await g.get("/health"))[0] == 503


# Pauses


async def test_a_pause_stops_the_desk_before_the_engines_end_anything() -> None:
    async with gateway() as g:
        gate = asyncio.Event()
        g.engines[0].gate = gate
        call = asyncio.create_task(g.call("/pause?mode=keep"))
        while not g.engines[0].calls:
            await asyncio.sleep(0)
        assert g.desk.told == [("pause", "keep")]
        gate.set()
        await call
        assert all(engine.paused for engine in g.engines)
        await g.call("/resume")
        assert g.desk.told == [("pause", "keep"), "resume"]
        assert not any(engine.paused for engine in g.engines)


async def test_a_pause_that_only_some_engines_took_does_not_stop_the_desk() -> None:
    async with gateway() as g:
        g.engines[1].answers["/pause"] = (500, {"error": "busy"})
        assert (await g.call("/pause?mode=keep"))[0] == 502
        assert g.desk.told == [("pause", "keep"), "resume"]
        assert [engine.paused for engine in g.engines] == [True, False]


async def test_engines_that_cannot_be_paused_do_not_stop_the_desk_for_a_moment() -> None:
    async with gateway() as g:
        for engine in g.engines:
            engine.abilities = Abilities()
            engine.answers["/pause"] = (404, {"detail": "Not Found"})
        assert await g.call("/pause") == (404, {"detail": "Not Found"})
        assert g.desk.told == []


async def test_sleep_is_a_pause_until_the_engines_are_wide_awake() -> None:
    async with gateway() as g:
        await g.call("/sleep?level=1")
        for engine in g.engines:
            engine.answers["/wake_up"] = {"status": "sleeping", "tags": ["weights"]}
        await g.call("/wake_up?tags=weights")
        assert g.desk.told == [("pause", "abort")]
        for engine in g.engines:
            engine.answers["/wake_up"] = {"status": "awake", "tags": None}
        await g.call("/wake_up")
        assert g.desk.told == [("pause", "abort"), "resume"]


async def test_engines_paused_one_by_one_stop_the_desk_with_the_last() -> None:
    async with gateway() as g:
        await g.call("/engines/engine-0/pause?mode=keep")
        assert (g.engines[0].paused, g.desk.told) == (True, [])
        await g.call("/engines/engine-1/pause?mode=keep")
        assert g.desk.told == [("pause", "keep")]
        await g.call("/engines/engine-0/resume")
        assert g.desk.told == [("pause", "keep"), "resume"]


async def test_what_died_during_a_pause_comes_back_running() -> None:
    async with gateway() as g:
        await g.call("/pause")
        g.engines[0].alive = False
        await g.call("/resume")
        assert not g.engines[0].paused


# Weights


@pytest.mark.parametrize(
    ("named", "version"),
    [("7", 7), ("step-7", 7), ("0012", 12), (None, 1), ("final", 1), ("9" * 40, 1), (-3, 1)],
)
async def test_a_finished_update_sets_the_version_or_counts_on(named: Any, version: int) -> None:
    async with gateway() as g:
        await g.call("/start_weight_update")
        await g.call("/update_weights", {"update_info": {}})
        await g.call("/update_weights", {"update_info": {}})
        assert g.desk.told == []
        await g.call("/finish_weight_update", {"weight_version": named})
        await g.call("/reset_prefix_cache")
        assert g.desk.told == [("weights", version)]


async def test_a_version_told_twice_is_one_version() -> None:
    async with gateway() as g:
        await g.call("/finish_weight_update", {"weight_version": "3"})
        await g.call("/update_weight_version", {"new_version": "3"})
        assert g.desk.told == [("weights", 3)]


async def test_a_version_given_after_an_update_without_one_is_set() -> None:
    async with gateway() as g:
        await g.call("/finish_weight_update")
        await g.call("/update_weight_version", {"new_version": "1"})
        await g.call("/update_weight_version", {"new_version": "10"})
        assert g.desk.told == [("weights", 1), ("weights", 10)]


async def test_weights_that_reached_some_engines_only_change_no_version() -> None:
    async with gateway() as g:
        g.engines[1].answers["/finish_weight_update"] = (500, {"error": "shape mismatch"})
        assert (await g.call("/finish_weight_update", {"weight_version": "4"}))[0] == 502
        assert g.desk.told == []
        assert [engine.weight_version for engine in g.engines] == [4, 0]
        del g.engines[1].answers["/finish_weight_update"]
        await g.call("/engines/engine-1/finish_weight_update", {"weight_version": "4"})
        assert g.desk.told == [("weights", 4)]


async def test_weights_given_engine_by_engine_are_one_version() -> None:
    async with gateway(3) as g:
        for step in (1, 2):
            for i in range(3):
                assert len(g.desk.told) == step - 1
                await g.call(f"/engines/engine-{i}/update_weights", {"update_info": {}})
                await g.call(f"/engines/engine-{i}/finish_weight_update")
        assert g.desk.told == [("weights", 1), ("weights", 2)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/collective_rpc", {"method": "update_weight", "args": ["layer"]}),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/update_weights", {"weight_dir": "x"}),
        ("/receive_weights", {}),
        ("/v1/load_lora_adapter", {"lora_name": "a"}),
    ],
)
async def test_weights_loaded_in_a_pause_count_once_when_it_ends(path: str, body: Any) -> None:
    async with gateway(control_paths=("/receive_weights",)) as g:
        await g.call("/pause?mode=keep")
        for _ in range(3):
            await g.call(path, body)
        await g.call("/resume")
        assert g.desk.told == [("pause", "keep"), ("weights", 1), "resume"]
        await g.call("/pause?mode=keep")
        await g.call("/resume")
        assert g.desk.pace.weight_version == 1


async def test_a_reload_without_a_pause_counts_by_itself_and_single_tensors_do_not() -> None:
    async with gateway() as g:
        await g.call("/collective_rpc", {"method": "reload_weights"})
        assert g.desk.told == [("weights", 1)]
        for layer in ("a", "b"):
            await g.call("/collective_rpc", {"method": "update_weight", "args": [layer]})
        assert g.desk.told == [("weights", 1)]
        await g.call("/reset_prefix_cache")
        assert g.desk.told == [("weights", 1), ("weights", 2)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/collective_rpc", {"method": "get_weights_checksum"}),
        ("/v1/unload_lora_adapter", {"lora_name": "a"}),
        ("/weight_checker", {"action": "checksum"}),
        ("/init_weight_transfer_engine", {"init_info": {}}),
        ("/collective_rpc", None),
    ],
)
async def test_other_calls_change_no_version(path: str, body: Any) -> None:
    async with gateway() as g:
        await g.call(path, body)
        await g.call("/reset_prefix_cache")
        assert g.desk.told == []


# Aborts


async def test_an_abort_names_requests_as_clients_know_them_wherever_it_is_sent() -> None:
    async with gateway() as g:
        expected = (200, {"status": "aborted", "aborted": 2})
        ids = {"request_ids": ["cmpl-a", "cmpl-b"]}
        assert await g.call("/abort_requests", ids) == expected
        assert await g.call("/engines/engine-1/abort_requests", ids) == expected
        assert await g.call("/inference/v1/abort_requests", ids) == (200, "")
        assert g.desk.told == [("abort", ["cmpl-a", "cmpl-b"])] * 3
        assert not g.engines[1].calls


async def test_an_abort_without_ids_ends_everything_or_everything_on_one_engine() -> None:
    async with gateway() as g:
        assert await g.call("/abort_requests", {}) == (200, {"status": "aborted", "aborted": 5})
        assert g.desk.told == [("abort", None)]
        await g.call("/engines/engine-1/abort_requests", {})
        assert g.desk.told == [("abort", None)]
        assert g.engines[1].calls == [("POST", "/abort_requests", {})]
        status, body = await g.call("/inference/v1/abort_requests", {})
        assert (status, body["error"]["message"]) == (400, "Missing 'request_ids' in request body")


@pytest.mark.parametrize("body", [[], {"request_ids": "cmpl-a"}, {"request_ids": [1]}, None])
async def test_an_abort_that_names_nothing_properly_is_refused(body: Any) -> None:
    async with gateway() as g:
        assert (await g.call("/abort_requests", body))[0] == 400
        assert g.desk.told == []


# To one engine


async def test_a_shadow_endpoint_speaks_to_its_engine_alone() -> None:
    async with gateway() as g:
        g.engines[1].answers["/get_world_size"] = {"world_size": 2}
        path = "/engines/engine-1/get_world_size"
        assert await g.get(path) == (200, {"world_size": 2})
        assert (await g.call("/engines/engine-1/anything/else?x=1"))[0] == 200
        assert (await g.get("/engines/engine-1/health"))[0] == 200
        assert g.paths(1) == ["/get_world_size", "/anything/else", "/health"]
        assert not g.engines[0].calls


async def test_requests_at_a_shadow_endpoint_are_steered() -> None:
    async with gateway() as g:
        assert await g.call("/engines/engine-1/v1/completions") == (200, "steered")
        assert not g.engines[1].calls


async def test_an_unknown_engine_is_named_with_those_there_are() -> None:
    async with gateway() as g:
        status, body = await g.call("/engines/engine-7/pause")
        assert status == 404
        assert body["error"]["message"] == ("unknown engine 'engine-7'; valid: engine-0, engine-1")


async def test_a_dead_engine_is_tried_at_its_own_endpoint() -> None:
    async with gateway() as g:
        g.engines[1].alive = False
        g.engines[1].answers["/health"] = FleetError("connection refused")
        status, body = await g.get("/engines/engine-1/health")
        assert status == 502
        assert "engine-1 cannot be reached: connection refused" in body["error"]["message"]


async def test_a_port_of_its_own_looks_like_the_engine() -> None:
    async with gateway() as g:
        base = await g.open_port("engine-1")
        assert (await g.call("/pause?mode=keep", base=base))[0] == 200
        assert (await g.call("/own/route", base=base))[0] == 200
        for path in ("/health", "/metrics", "/get_world_size", "/v1/models"):
            assert (await g.call(path, method="GET", base=base))[0] == 200
        assert await g.call("/v1/completions", base=base) == (200, "steered")
        assert await g.call("/v1/embeddings", base=base) == (200, "steered")
        assert g.paths(1) == [
            *("/pause", "/own/route", "/health", "/metrics", "/get_world_size", "/v1/models")
        ]
        assert not g.engines[0].calls
        assert await g.get("/metrics") == (200, "steered")
