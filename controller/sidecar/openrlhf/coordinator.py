"""The controller of all engines of one run: a Ray actor that their executors find by its name.

Engines make themselves known with their first prompt.  The configuration comes from the file that
`STEERSMAN_CONFIG` names, and from the environment (`STEERSMAN_PLACEMENT__NAME`).
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steersman.controller.config import Config, load_config
from steersman.controller.core import Controller
from steersman.controller.sidecar.leases.desk import Desk
from steersman.controller.sidecar.leases.line import Mail
from steersman.controller.sidecar.leases.wire import Event
from steersman.controller.sidecar.openrlhf import engine
from steersman.controller.trace.writer import NoTrace, TraceWriter
from steersman.mechanisms.fleet import ReplicaInfo
from steersman.mechanisms.leases.fleet import LeaseFleet
from steersman.mechanisms.leases.inside import Limits

NAME = "steersman-openrlhf"
"""Of the actor; one per run, since Ray's names belong to a job."""
LOOK_S = 0.25
"""Between two looks into an engine: a tick of the controller."""
STALL_S = 60.0
"""An engine that does not answer a look for so long is given up."""

log = logging.getLogger(__name__)


class Coordinator:
    """The actor's class; all of it runs on one event loop."""

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        self._config = _config(environ if environ is not None else dict(os.environ))
        self._handles: dict[str, Any] = {}
        self._fleet = LeaseFleet(self._abort)
        self._desk: Desk | None = None
        self._watching: set[asyncio.Task[None]] = set()

    async def register(self, name: str, handle: list[Any], found: Limits) -> None:
        """An engine joins; its handle comes in a list, so that Ray hands it over as it is."""
        if name in self._handles:
            return
        self._handles[name] = handle[0]
        self._fleet.add(
            ReplicaInfo(
                name,
                max_num_seqs=found.max_num_seqs,
                max_model_len=found.max_model_len,
                kv_capacity_tokens=found.kv_capacity_tokens,
            )
        )
        await self._open()
        task = asyncio.create_task(self._watch(name), name=f"steersman-watch-{name}")
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def steersman_tell(self, client: str, events: Sequence[Event]) -> None:
        """News of an executor."""
        if self._desk is not None:
            self._desk.tell(client, events)

    async def steersman_fetch(self, client: str, version: int, wait_s: float) -> Mail:
        """Orders for an executor."""
        assert self._desk is not None, "an executor registers its engine first"
        orders = await self._desk.fetch(client, wait_s)
        changed = version != len(self._handles)
        servers = dict(self._handles) if changed else None
        return Mail(orders, len(self._handles), servers, "direct")

    async def counts(self) -> dict[str, int]:
        """For whoever asks how it goes."""
        desk = self._desk
        return {
            "open": 0 if desk is None else desk.open_calls,
            "set_free": 0 if desk is None else desk.set_free,
            "engines": len(self._handles),
        }

    async def _open(self) -> None:
        if self._desk is None:
            path = self._config.trace.path
            trace = TraceWriter(path) if path else NoTrace()
            self._desk = Desk(self._fleet, Controller.from_config(self._config), trace=trace)
            await self._desk.__aenter__()

    async def _abort(self, replica: str, attempt_ids: Sequence[str]) -> None:
        await engine.send(self._handles[replica], engine.Abort(list(attempt_ids)))

    async def _watch(self, name: str) -> None:
        """Look into the engine as long as that works."""
        while True:
            try:
                async with asyncio.timeout(STALL_S):
                    reading = await engine.send(self._handles[name], engine.Look())
            except TimeoutError:
                self._lose(name, "it does not answer")
                return
            except Exception as error:
                if engine.is_gone(error):
                    self._lose(name, str(error).partition("\n")[0])
                else:
                    log.exception("engine %s cannot be looked into: progress is estimated", name)
                    self._fleet.unread(name)
                return
            self._fleet.read(name, reading)
            await asyncio.sleep(LOOK_S)

    def _lose(self, name: str, why: str) -> None:
        log.warning("engine %s is lost: %s", name, why)
        self._fleet.lose(name, why)


def _config(environ: dict[str, str]) -> Config:
    told = dict(environ)
    path = told.pop("STEERSMAN_CONFIG", "")
    return load_config(Path(path) if path else None, (), told)
