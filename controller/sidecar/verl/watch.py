"""Looks into each engine at intervals: how far its requests are, whether it is paused or gone.

An engine that cannot be looked into (built otherwise, or without this package) is left alone: its
progress is estimated from the ends that clients tell.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from steersman.controller.sidecar.verl import server
from steersman.controller.sidecar.verl.generation import reason_of
from steersman.controller.sidecar.verl.settings import RouterSettings
from steersman.mechanisms.fleet import ReplicaInfo
from steersman.mechanisms.leases.fleet import LeaseFleet
from steersman.mechanisms.leases.inside import Limits

MAX_FAILURES = 3
"""Looks in a row that fail before it is given up: the first may come while the server starts."""
FIRST_LOOK_S = 5.0
"""That the first decision waits for the engines' limits; it can do without."""

log = logging.getLogger(__name__)


class Watch:
    """One task per server."""

    def __init__(
        self,
        fleet: LeaseFleet,
        settings: RouterSettings,
        weights_changed: Callable[[int], None],
    ) -> None:
        self._fleet, self._settings = fleet, settings
        self._weights_changed = weights_changed
        self._handles: dict[str, Any] = {}
        """Those that left too: what runs there may have to be aborted."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._seen: dict[str, asyncio.Event] = {}

    def handle(self, name: str) -> Any | None:
        """Of a server that was ever there."""
        return self._handles.get(name)

    def start(self, name: str, handle: Any) -> None:
        """A server joins, or comes back, perhaps as another actor."""
        self.stop(name)
        self._handles[name] = handle
        seen = self._seen[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(
            self._look(name, handle, seen), name=f"steersman-look-{name}"
        )

    def stop(self, name: str) -> None:
        """It leaves."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            self._fleet.unread(name)
            self._seen.pop(name).set()

    async def first_look(self) -> None:
        """Until each server was looked into, or could not be, or `FIRST_LOOK_S` are over."""
        waits = [asyncio.create_task(seen.wait()) for seen in self._seen.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=FIRST_LOOK_S)
            for wait in late:
                wait.cancel()

    async def _look(self, name: str, handle: Any, seen: asyncio.Event) -> None:
        settings, failures, described, why = self._settings, 0, False, ""
        while failures < MAX_FAILURES:
            try:
                async with asyncio.timeout(settings.stall_timeout_s):
                    if not described:
                        self._describe(name, await handle.__ray_call__.remote(server.limits))
                        described = True
                    if not settings.look_every_s:
                        break
                    reading = await handle.__ray_call__.remote(server.look)
            except TimeoutError:
                self._fleet.lose(name, f"it was silent for {settings.stall_timeout_s} s")
                break
            except Exception as error:
                failures += 1
                if reason_of(error)[1]:
                    self._fleet.lose(name, "its actor died")
                    break
                why = repr(error).partition("\n")[0]
            else:
                failures = 0
                self._fleet.read(name, reading)
                if reading.weight_version is not None:
                    self._weights_changed(reading.weight_version)
                seen.set()
            await asyncio.sleep(settings.look_every_s)
        else:
            log.warning("%s cannot be looked into, its progress is estimated: %s", name, why)
            self._fleet.unread(name)
        seen.set()

    def _describe(self, name: str, limits: Limits) -> None:
        plain = ReplicaInfo(name)
        self._fleet.describe(
            ReplicaInfo(
                name,
                max_num_seqs=limits.max_num_seqs or plain.max_num_seqs,
                max_model_len=limits.max_model_len or plain.max_model_len,
                kv_capacity_tokens=limits.kv_capacity_tokens,
            )
        )
