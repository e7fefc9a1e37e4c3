"""A control loop kept going beside its fleet's news, whatever becomes of its task.

A session and a gateway steer alike: the trace begins with the run, the loop decides, a replica that
died or joined is told, and where the loop's own task ends before its time, the fallback goes on.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from steersman.controller.config import Config
from steersman.controller.loop import ControlLoop
from steersman.controller.trace import records
from steersman.controller.trace.writer import TraceWriter
from steersman.mechanisms.fleet import Fleet


def begin_run(trace: TraceWriter, config: Config, fleet: Fleet) -> None:
    """The first record of a trace."""
    trace.write(
        records.RunStarted(
            t_s=0.0,
            started_unix_s=time.time(),
            config=msgspec.to_builtins(config),
            replicas=list(fleet.replicas),
            seed=config.seed,
        )
    )


class Steering:
    """The tasks of one run, from its making until `stop`."""

    def __init__(self, loop: ControlLoop, fleet: Fleet, on_change: Callable[[], None]) -> None:
        self._loop, self._fleet, self._on_change = loop, fleet, on_change
        self._open = True
        steering = asyncio.create_task(loop.run(), name="steersman-loop")
        steering.add_done_callback(self._loop_ended)
        watching = asyncio.create_task(self._watch_fleet(), name="steersman-fleet-watch")
        self._tasks = [steering, watching]

    async def stop(self) -> None:
        """End the tasks; nothing is decided any more."""
        self._open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.close()

    def _loop_ended(self, loop: asyncio.Task[None]) -> None:
        if not self._open:
            return
        why = "the control loop was cancelled" if loop.cancelled() else repr(loop.exception())
        task = asyncio.create_task(self._loop.run_default(why), name="steersman-default")
        task.add_done_callback(self._loop_ended)
        self._tasks.append(task)

    async def _watch_fleet(self) -> None:
        """A replica that died or joined changes what can be decided."""
        while True:
            await self._fleet.changed.wait()
            self._fleet.changed.clear()
            self._on_change()
