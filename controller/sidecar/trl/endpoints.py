"""Where a trainer's requests go: to the gateway, and, if it is lost, as the user wants it.

`on_loss` says what a lost gateway means:

- "plain": requests go straight to the engines, each to the one with the fewest under way, as the
  trainer would do it by itself.  A warning says so once; the gateway is looked for from time to
  time, and used again once it answers.
- "stop": it may come back within `patience_s`; then the run ends with `GatewayLostError`.

A gateway is lost when it cannot be reached and its `/health` does not answer either.  One that
takes requests and answers none is found out by asking for its health meanwhile.  Every wait has an
end, so nothing here hangs.

This module holds what threads share: addresses, settings, and what is known of the two.  `client`
does the asking, for one event loop.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import urlsplit

from steersman.estimators.errors import FleetError, InvalidInputError

OnLoss = Literal["plain", "stop"]

log = logging.getLogger(__name__)


class GatewayLostError(FleetError):
    """The gateway does not answer, and the run shall not go on without it."""


class Endpoints:
    """The gateway, the engines behind it, and which of them can be used now."""

    def __init__(
        self,
        gateway: str,
        engines: Sequence[str] = (),
        *,
        on_loss: OnLoss = "stop",
        token: str = "",
        engine_token: str = "",
        request_timeout_s: float = 600.0,
        control_timeout_s: float = 300.0,
        patience_s: float = 30.0,
        retry_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Parameters
        ----------
        gateway
            Its URL; "": there is none, the engines are asked directly.
        engines
            Their URLs, as the gateway has them; needed for `on_loss="plain"`.
        on_loss
            What a lost gateway means: "plain" or "stop".
        token
            Of the gateway, if it asks for one; it must open control for weights to be pushed.
        engine_token
            The engines' API key, if they ask for one, for requests without the gateway.
        request_timeout_s
            For one group of samples, with all its retries.
        control_timeout_s
            For one call of the control plane: a pause, or loading weights.
        patience_s
            How long a gateway (with "stop"), or the last engine, may be away.
        retry_s
            After which a lost gateway, or an engine that failed, is tried again.
        """
        if on_loss not in ("plain", "stop"):
            raise InvalidInputError(f'on_loss is {on_loss!r}; valid: "plain", "stop"')
        if not gateway and not engines:
            raise InvalidInputError("neither a gateway nor engines; valid: the URL of one at least")
        if gateway and on_loss == "plain" and not engines:
            raise InvalidInputError(
                'on_loss="plain" needs the engines\' URLs: where requests go without the gateway'
            )
        self.gateway = _url(gateway) if gateway else ""
        self.engines = tuple(_url(engine) for engine in engines)
        self.on_loss: OnLoss = on_loss
        self.token, self.engine_token = token, engine_token
        for name, value in (
            ("request_timeout_s", request_timeout_s),
            ("control_timeout_s", control_timeout_s),
            ("patience_s", patience_s),
            ("retry_s", retry_s),
        ):
            if not value > 0:
                raise InvalidInputError(f"{name} is {value}; valid: above 0")
        self.request_timeout_s, self.control_timeout_s = request_timeout_s, control_timeout_s
        self.patience_s, self.retry_s = patience_s, retry_s
        self.weight_version: int | None = None
        """Newest that was pushed; None: none was."""
        self.losses = 0
        """Times the gateway was lost."""
        self._clock, self._lock = clock, threading.Lock()
        self._lost, self._look_at_s = False, 0.0
        self._behind: set[str] = set()
        """Engines that missed the newest weights."""
        self._down_until_s: dict[str, float] = {}
        self._inflight = dict.fromkeys(self.engines, 0)
        self._turn = 0

    @property
    def direct(self) -> bool:
        """Requests go to the engines now."""
        return self._lost or not self.gateway

    def lose(self, why: str) -> None:
        """The gateway is lost; from now on requests go to the engines."""
        with self._lock:
            self._look_at_s = self._clock() + self.retry_s
            if self._lost:
                return
            self._lost = True
            self.losses += 1
        log.warning(
            "the gateway at %s is lost (%s): requests go straight to the engines, unsteered, until "
            "it answers again",
            self.gateway,
            why,
        )

    def looks_due(self) -> bool:
        """Whether the caller shall look if a lost gateway is back; true for one caller a time."""
        with self._lock:
            if not self._lost or self._clock() < self._look_at_s:
                return False
            self._look_at_s = self._clock() + self.retry_s
            return True

    def found(self) -> None:
        """The gateway answers again."""
        with self._lock:
            was_lost, self._lost = self._lost, False
        if was_lost:
            log.warning("the gateway at %s answers again: requests are steered", self.gateway)

    def took_weights(self, engines: Sequence[str]) -> None:
        """These engines hold the newest weights; the others get no requests until they do."""
        with self._lock:
            self._behind = set(self.engines).difference(engines)

    @property
    def current_engines(self) -> list[str]:
        """Those that are not known to have missed the newest weights."""
        with self._lock:
            return [engine for engine in self.engines if engine not in self._behind]

    def failed(self, engine: str) -> None:
        """An engine could not be reached."""
        with self._lock:
            self._down_until_s[engine] = self._clock() + self.retry_s

    def acquire(self) -> str | None:
        """The engine for the next request, the least busy; None: none can be used now."""
        with self._lock:
            now_s = self._clock()
            usable = [
                engine
                for engine in self.engines
                if engine not in self._behind and self._down_until_s.get(engine, 0.0) <= now_s
            ]
            if not usable:
                return None
            self._turn += 1  # equals take turns
            start = self._turn % len(usable)
            turned = usable[start:] + usable[:start]
            engine = min(turned, key=self._inflight.__getitem__)
            self._inflight[engine] += 1
            return engine

    def release(self, engine: str) -> None:
        """A request at that engine is over."""
        with self._lock:
            self._inflight[engine] -= 1


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidInputError(f"{text!r} is no URL; valid: http://HOST:PORT")
    return text.rstrip("/")
