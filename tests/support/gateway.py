"""A gateway in this process, over fake engines or over addresses of real ones."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from support.fake_vllm import FakeVllm

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.gateway.app import Runner, build_app
from steersman.controller.gateway.clock import PausableClock
from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.lane import Lanes
from steersman.controller.gateway.shadow import PORTS
from steersman.controller.gateway.tracing import RequestSpans
from steersman.controller.trace.writer import TraceWriter
from steersman.mechanisms.execution import Execution, ToReplica
from steersman.mechanisms.http_vllm.fleet import HttpFleet, HttpSettings


@dataclass
class Gateway:
    """What a test sees of it."""

    url: str
    desk: Desk
    fakes: list[FakeVllm]
    client: aiohttp.ClientSession
    trace: TraceWriter
    lanes: Lanes
    """Of the connections that are not aiohttp's."""
    shadows: list[str] = field(default_factory=list)
    """Its address of each engine, with `gateway.shadow_ports=true`."""

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(self.url + path, json=body, headers=named) as response:
            return response.status, await response.json()

    async def events(self, path: str, body: Any) -> list[str]:
        """The data of each event of a streamed answer."""
        async with self.client.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
        return [part.removeprefix("data: ") for part in text.split("\n\n") if part]

    def running(self) -> list[Execution]:
        """Trajectories on an engine, oldest first."""
        return [e for e in self.desk.ledger.executions.values() if e.attempt is not None]

    def move(self, execution: Execution) -> bool:
        """Send it to the next engine."""
        names = [info.name for info in self.desk.fleet.replicas]
        at = execution.replica
        assert at is not None
        target = names[(names.index(at) + 1) % len(names)]
        return execution.leave(ToReplica(target), "the test moves it")


@asynccontextmanager
async def gateway(
    engines: int | Sequence[FakeVllm] | Sequence[str] = 2,
    *overrides: str,
    settings: HttpSettings | None = None,
    spans: RequestSpans | None = None,
    spoil: Callable[[Controller], None] = lambda controller: None,
    **knobs: Any,
) -> AsyncIterator[Gateway]:
    """A gateway on loopback; `knobs` are those of `FakeVllm`, `overrides` of the configuration."""
    fakes = [FakeVllm(**knobs) for _ in range(engines)] if isinstance(engines, int) else engines
    config = load_config(None, ["placement.name=sticky_least_inflight", *overrides], {})
    clock, trace = PausableClock(), TraceWriter(None)
    async with AsyncExitStack() as stack:
        urls = [
            fake if isinstance(fake, str) else await stack.enter_async_context(fake)
            for fake in fakes
        ]
        fleet = await HttpFleet.attach(urls, settings or HttpSettings(), clock=clock)
        stack.push_async_callback(fleet.close)
        controller = Controller.from_config(config)
        spoil(controller)
        desk = Desk(fleet, controller, config.gateway, trace=trace, clock=clock, spans=spans)
        await stack.enter_async_context(desk)
        app = build_app(desk, config.gateway)
        app[PORTS] = {}
        runner = Runner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        names = [info.name for info in fleet.replicas] if config.gateway.shadow_ports else []
        for _ in ["", *names]:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        port, *ports = [address[1] for address in runner.addresses]
        app[PORTS].update(zip(ports, names, strict=True))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        own = [fake for fake in fakes if isinstance(fake, FakeVllm)]
        shadows = [f"http://127.0.0.1:{each}" for each in ports]
        yield Gateway(f"http://127.0.0.1:{port}", desk, own, client, trace, runner.lanes, shadows)
