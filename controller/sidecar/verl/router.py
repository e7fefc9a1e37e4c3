"""The router: verl's `RequestLoadBalancer`, and the controller of trajectories behind it.

    actor_rollout_ref.rollout.router_config_path=router.yaml      # names this class

verl's stock clients get a place per request: that of their conversation, or the engine with the
fewest requests in flight among those with room in their KV cache.  Our client (`manager`) tells
more, and the controller decides where each of its trajectories runs, from begin to end.

It is one Ray actor with one event loop: its methods never wait for each other.  Whatever goes wrong
with the controller, places are still given out; a call that it loses is told to go on alone.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from steersman.controller.core import Controller
from steersman.controller.sidecar.leases.desk import Desk
from steersman.controller.sidecar.leases.line import Mail
from steersman.controller.sidecar.leases.wire import Event
from steersman.controller.sidecar.verl import server
from steersman.controller.sidecar.verl.places import Places
from steersman.controller.sidecar.verl.settings import read_settings
from steersman.controller.sidecar.verl.watch import Watch
from steersman.controller.trace.writer import NoTrace, TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import ReplicaInfo
from steersman.mechanisms.leases.fleet import LeaseFleet

NO_SERVERS = "No available servers in load balancer"
"""verl's clients wait where an error says this, and raise at any other."""

log = logging.getLogger(__name__)


class SteersmanRouter:
    """One per rollout; verl makes an actor of it."""

    def __init__(self, servers: dict[str, Any], yaml_config: Mapping[str, Any]) -> None:
        self._settings, config = read_settings(yaml_config)
        self._controller = Controller.from_config(config)
        self._handles: dict[str, Any] = {}
        self._version = 0
        self._fleet = LeaseFleet(self._abort)
        self._places = Places(self._fleet)
        self._watch = Watch(self._fleet, self._settings, self._weights_changed)
        self._desk: Desk | None = None
        self._opening = asyncio.Lock()
        self._early: dict[str, Any] = dict(servers)
        """Those that were there before there was an event loop."""

    # verl's contract

    async def acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        """A place for one request of a stock client; give it back with `release_server`."""
        self._start()
        name = self._places.take(request_id)
        if name is None:
            raise RuntimeError(NO_SERVERS)
        return name, self._handles[name]

    async def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """The request has ended."""
        self._places.give_back(server_id)

    async def require_acquire_fields(self) -> list[str]:
        """Nothing but the request's id: prompts do not pass through here."""
        return []

    async def require_release_fields(self) -> list[str]:
        """Nothing but the server's id."""
        return []

    async def add_servers(self, servers: dict[str, Any]) -> None:
        """They join, or come back."""
        self._start()
        self._add(servers)

    async def remove_servers(self, server_ids: list[str]) -> None:
        """Nothing goes there any more."""
        self._start()
        for name in server_ids:
            if self._handles.pop(name, None) is not None:
                self._fleet.remove(name)
                self._watch.stop(name)
                self._places.drop(name)
        self._version += 1

    async def get_all_servers(self) -> list[str]:
        """Names of those in the pool."""
        self._start()
        return list(self._handles)

    async def get_status(self) -> dict[str, Any]:
        """verl's keys, and `steersman`: who decides, and the books."""
        self._start()
        loads = self._loads()
        return {
            "servers": loads,
            "total_inflight": sum(loads.values()),
            "active_servers": len(loads),
            "registered_handles": list(self._handles),
            "steersman": self._books(),
        }

    async def clear_sticky_cache(self) -> dict[str, Any]:
        """Let conversations go anywhere."""
        self._start()
        return {"cleared_entries": self._places.forget(), "server_loads": self._loads()}

    async def get_total_inflight(self) -> int:
        """Requests on the servers of the pool, of stock clients and of ours."""
        self._start()
        return sum(self._loads().values())

    # Our client

    async def steersman_tell(self, client: str, events: Sequence[Event]) -> None:
        """Begins and ends of a worker's trajectories."""
        (await self._open_desk()).tell(client, events)

    async def steersman_fetch(self, client: str, version: int, wait_s: float) -> Mail:
        """A worker's orders, and the servers if they changed since that version."""
        desk = await self._open_desk()
        orders = await desk.fetch(client, wait_s if version == self._version else 0.0)
        known = version == self._version
        servers = None if known else dict(self._handles)
        return Mail(orders, self._version, servers, self._settings.router_lost)

    async def steersman_reward(self, rewards: Sequence[tuple[int, float]]) -> int:
        """What trajectories earned, by the ids in their answers; how many were known here."""
        if self._desk is None:
            return 0
        taken = 0
        for trajectory_id, reward in rewards:
            try:
                self._desk.ledger.reward(trajectory_id, reward)
                taken += 1
            except InvalidInputError:
                continue
        return taken

    async def steersman_switch_off(self, why: str = "switched off by the caller") -> None:
        """The kill switch: from now on the fallback decides."""
        (await self._open_desk()).loop.switch_off(why)

    async def steersman_close(self) -> None:
        """Let every call go on alone, and end."""
        for name in list(self._handles):
            self._watch.stop(name)
        if self._desk is not None:
            await self._desk.__aexit__(None, None, None)

    # Inside

    def _start(self) -> None:
        """What needs a running event loop."""
        if self._early:
            early, self._early = self._early, {}
            self._add(early)

    def _add(self, servers: Mapping[str, Any]) -> None:
        for name, handle in servers.items():
            self._handles[name] = handle
            self._fleet.add(ReplicaInfo(name))
            self._places.drop(name)
            self._watch.start(name, handle)
        self._version += 1

    async def _open_desk(self) -> Desk:
        self._start()
        async with self._opening:
            if self._desk is None:
                await self._watch.first_look()
                settings, config = self._settings, self._controller.config
                desk = Desk(
                    self._fleet,
                    self._controller,
                    trace=new_trace(config.trace.path),
                    objective=settings.objective,
                    may_defer=settings.may_defer,
                    term_s=settings.term_s,
                )
                self._desk = await desk.__aenter__()
        return self._desk

    async def _abort(self, replica: str, attempt_ids: Sequence[str]) -> None:
        if (handle := self._watch.handle(replica)) is not None:
            await server.abort_requests(handle, attempt_ids)

    def _weights_changed(self, weight_version: int) -> None:
        if self._desk is not None:
            self._desk.weights_changed(weight_version)

    def _loads(self) -> dict[str, int]:
        return {name: self._places.load(name) for name in self._handles}

    def _books(self) -> dict[str, Any]:
        desk = self._desk
        if desk is None:
            return {"state": "idle"}
        books = msgspec.to_builtins(desk.ledger.counts())
        return {
            "state": desk.loop.state.value,
            "why": desk.loop.why,
            "weight_version": desk.pace.weight_version,
            "open_calls": desk.open_calls,
            "set_free": desk.set_free,
            "attempt_ends": dict(desk.ledger.attempt_ends),
            **books,
        }


def new_trace(path: str | None) -> TraceWriter:
    """A trace at that path; a trainer with two routers gets `NAME-2` for the second one."""
    if path is None:
        return NoTrace()
    wanted = Path(path)
    number = 1
    while True:
        name = wanted if number == 1 else wanted.with_stem(f"{wanted.stem}-{number}")
        if not name.exists():
            return TraceWriter(name)
        number += 1
