"""The life of a gateway: opened, announced, and ended without losing what is under way.

The first signal (SIGINT, SIGTERM) makes it drain: requests under way get `gateway.drain_s` to end,
new ones are answered 503 and shall go elsewhere, `/health` says so.  What is then left is ended
with what it has.  A second signal ends the wait.
"""

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from steersman.controller.config import Config
from steersman.controller.core import Controller
from steersman.controller.gateway.app import Runner, build_app
from steersman.controller.gateway.clock import PausableClock
from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.security import Tokens, check_exposure, tls_context
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.shadow import PORTS
from steersman.controller.gateway.tracing import configured_spans
from steersman.controller.trace.writer import NoTrace, TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.http_vllm.contract import ServedFleet

COLLECT_AT = (500, 5000, 20)
"""New objects, and visits, after which each generation is looked at.  A visit of 500 takes half a
millisecond, one of 10,000 took 12 ms, in which six of 500 requests a second came to wait in line.
The survivors (what is open) take 20 ms at 256 requests, 200 ms at 1,536, where 1,000 visits are
over in 8 s and p99 was 170 ms for it; requests leave no cycles there (6 objects of 42,000 of them).
Garbage that only this finds is at most 5,000 * 500 objects, some 250 MB."""
SWITCH_S = 0.0002
"""Longest wait of the event loop for a thread that computes; Python's own is 5 ms, more than a
request should take.  It waits so long at each of its callbacks while a decision is taken."""
BACKLOG = 4096
"""Connections that wait to be taken: a step's requests come at once.  Linux's own limit."""

Attach = Callable[[PausableClock], Awaitable[ServedFleet]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a gateway says of itself once it listens."""

    url: str
    mode: str
    engines: dict[str, str]
    """Name -> address."""
    shadows: dict[str, str]
    """Name -> the gateway's address of its own for it; empty without `gateway.shadow_ports`."""


class Stop:
    """Signals that end it."""

    def __init__(self) -> None:
        self.asked, self.hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # what a shell starts in the background is deaf to Ctrl-C on purpose
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._take, number)

    def _take(self, number: signal.Signals) -> None:
        if not self.asked.is_set():
            log.info("%s: draining", number.name)
            self.asked.set()
        else:
            self.hurried.set()


async def serve(config: Config, attach: Attach, announce: Callable[[Opened], None]) -> bool:
    """Open a gateway and serve until a signal; False: a second one had to end it.

    Raises `InvalidInputError` or `FleetError` for what keeps it from being opened.
    """
    settings = config.gateway
    check_exposure(settings, Tokens.load(settings))
    tls = tls_context(settings)
    controller = Controller.from_config(config)
    raise_open_files()
    clock, spans = PausableClock(), configured_spans(settings.otel, settings.host, settings.port)
    fleet = await attach(clock)
    try:
        trace = TraceWriter(config.trace.path) if config.trace.path else NoTrace()
        async with Desk(fleet, controller, settings, trace=trace, clock=clock, spans=spans) as desk:
            app = build_app(desk, settings)
            app[PORTS] = {}
            runner = Runner(app)
            await runner.setup()
            try:
                opened = await _listen(runner, app, desk, tls)
                stop = Stop()
                calm_collector()
                answer_first()
                announce(opened)
                await stop.asked.wait()
                await _drain(desk, settings, stop)
            finally:
                await runner.cleanup()
    finally:
        await fleet.close()
        if spans is not None:
            await asyncio.to_thread(spans.close)
    return not stop.hurried.is_set()


def calm_collector() -> None:
    """Let the garbage collector look rarely, and never at what stays.

    Requests leave few cycles behind.  At Python's own threshold (700 new objects) every request is
    one of the collector's visits to everything that is open: a fifth of the time, and its pauses.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)


def answer_first() -> None:
    """Let requests interrupt a decision, which is taken in a thread of its own."""
    sys.setswitchinterval(SWITCH_S)


def raise_open_files() -> None:
    """Let this process open as many files as the system allows it: each request needs two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        log.warning("the limit of open files stays as it is: %s", error)


async def _listen(
    runner: web.AppRunner, app: web.Application, desk: Desk, tls: ssl.SSLContext | None
) -> Opened:
    settings, fleet = desk.settings, desk.fleet
    url = _url(settings.host, await _open(runner, settings.host, settings.port, tls), tls)
    engines = {info.name: fleet.engine(info.name).url for info in fleet.replicas}
    shadows = {}
    if settings.shadow_ports:
        for number, name in enumerate(engines, start=1):
            wanted = settings.port + number if settings.port else 0
            port = await _open(runner, settings.host, wanted, tls)
            app[PORTS][port] = name
            shadows[name] = _url(settings.host, port, tls)
    return Opened(url, desk.loop.state.value, engines, shadows)


async def _open(runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None) -> int:
    """Listen; the number of the port."""
    try:
        if port > 65535:
            raise InvalidInputError(f"port {port} is beyond 65535; valid: a smaller gateway.port")
        before = len(runner.addresses)
        await web.TCPSite(runner, host, port, ssl_context=tls, backlog=BACKLOG).start()
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInputError(f"cannot listen on {host} port {port}: {reason}") from error
    return int(runner.addresses[before][1])


def _url(host: str, port: int, tls: ssl.SSLContext | None) -> str:
    """As a client on this machine, or elsewhere, writes it."""
    named = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        named = socket.gethostname()
    return f"http{'s' if tls else ''}://{named}:{port}"


async def _drain(desk: Desk, settings: GatewayConfig, stop: Stop) -> None:
    draining = asyncio.create_task(desk.drain(settings.drain_s))
    hurry = asyncio.create_task(stop.hurried.wait())
    await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if stop.hurried.is_set():
        draining.cancel()
        desk.abort(None, "the gateway ends at once")
    elif cut := draining.result():
        log.warning("%d requests did not end within %g s and were aborted", cut, settings.drain_s)
