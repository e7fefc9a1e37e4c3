"""Whether there is room for a request, and when to come back if there is none."""

from collections import deque

from steersman.controller.gateway.settings import GatewayConfig
from steersman.estimators.errors import SteersmanError
from steersman.mechanisms.http_vllm.contract import ServedFleet

REMEMBERED_ENDS = 256
"""By which the present pace is told: some seconds of a busy fleet."""
RETRY_S = (1, 60)
"""Bounds of what a client is told to wait."""


class OverloadedError(SteersmanError):
    """The request is not taken in; it may come again."""

    def __init__(self, status: int, why: str, retry_after_s: int) -> None:
        super().__init__(why)
        self.status, self.retry_after_s = status, retry_after_s


class Room:
    """Bounds what is open at once."""

    def __init__(self, fleet: ServedFleet, settings: GatewayConfig) -> None:
        self._fleet, self._settings = fleet, settings
        self._ends: deque[float] = deque(maxlen=REMEMBERED_ENDS)

    @property
    def limit(self) -> int:
        """Most samples that may be open: those that run, and those that wait."""
        fleet = self._fleet
        running = sum(i.max_num_seqs for i in fleet.replicas if fleet.is_alive(i.name))
        return running + self._settings.max_queue

    def check(self, inflight: int, asks: int, draining: bool) -> None:
        """Raises `OverloadedError` if `asks` more samples cannot be taken in.

        A request of its own is never too large: it would come back for ever.
        """
        if draining:
            raise OverloadedError(503, "the gateway is about to end", RETRY_S[0])
        if not any(self._fleet.is_alive(info.name) for info in self._fleet.replicas):
            raise OverloadedError(503, "no engine is alive", self.retry_after_s(inflight))
        if inflight and inflight + asks > self.limit:
            why = f"{inflight} samples are open; the limit is {self.limit}"
            raise OverloadedError(429, why, self.retry_after_s(inflight))

    def ended(self, now_s: float) -> None:
        """A sample has ended."""
        self._ends.append(now_s)

    def retry_after_s(self, inflight: int) -> int:
        """Until about a tenth of what is open has ended, at the present pace."""
        ends, (least, most) = self._ends, RETRY_S
        if len(ends) < 2 or ends[-1] <= ends[0]:
            return least
        per_s = (len(ends) - 1) / (ends[-1] - ends[0])
        return int(min(max(0.1 * inflight / per_s, least), most))
