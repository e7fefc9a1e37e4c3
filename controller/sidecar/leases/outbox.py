"""Orders that wait for their client to fetch them."""

import asyncio
import time
from collections.abc import Callable

from steersman.controller.sidecar.leases.wire import Order


class Outbox:
    """Of one client, which fetches again as soon as it was answered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._orders: list[Order] = []
        self._news = asyncio.Event()
        self._fetching = 0
        self._heard_s = clock()

    def put(self, order: Order) -> None:
        """For the next fetch."""
        self._orders.append(order)
        self._news.set()

    def silent_s(self) -> float:
        """Seconds since it last fetched; 0 while it does."""
        return 0.0 if self._fetching else self._clock() - self._heard_s

    async def fetch(self, wait_s: float) -> list[Order]:
        """All orders there are, as soon as there are some, or none after `wait_s`."""
        self._fetching += 1
        try:
            if not self._orders:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                except TimeoutError:
                    pass
            orders, self._orders = self._orders, []
            self._news.clear()
            return orders
        finally:
            self._fetching -= 1
            self._heard_s = self._clock()
