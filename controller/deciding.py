"""Runs `decide` off the event loop, so that one that never returns stops nobody.

A thread that hangs cannot be killed, but it can be left alone: it is a daemon, its late answer is
thrown away, and until it returns nothing is submitted to it.  One thread only: the estimators'
state must not be touched by two decisions at once.
"""

import asyncio
import queue
import threading
from concurrent.futures import Future

from steersman.controller.core import Controller, Verdict
from steersman.estimators.observation import Observation


class DecidingThread:
    """One daemon thread that owns a controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._inbox: queue.SimpleQueue[tuple[Observation, Future[Verdict]] | None] = (
            queue.SimpleQueue()
        )
        self._pending: Future[Verdict] | None = None
        self._thread = threading.Thread(target=self._work, name="steersman-decide", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether an earlier decision has not returned."""
        return self._pending is not None and not self._pending.done()

    async def decide(self, observation: Observation, timeout_s: float) -> Verdict:
        """The controller's verdict; raises `TimeoutError` when it takes longer than that.

        Whatever `decide` raises is raised here.
        """
        self._pending = Future()
        self._inbox.put((observation, self._pending))
        # shield: the timeout gives up waiting, it must not cancel what the thread will still set
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(asyncio.wrap_future(self._pending))

    def close(self) -> None:
        """Let the thread end when its present decision, if any, returns."""
        self._inbox.put(None)

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            observation, answer = item
            try:
                answer.set_result(self._controller.decide(observation))
            except BaseException as error:
                answer.set_exception(error)
