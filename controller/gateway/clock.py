"""A clock that stands still while the fleet is paused: paused time is no straggling."""

import time
from collections.abc import Callable


class PausableClock:
    """Seconds, like `time.monotonic`, less those during which it was paused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paused_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        """The present time."""
        now_s = self._clock() if self._since_s is None else self._since_s
        return now_s - self._paused_s

    def pause(self) -> None:
        """Stand still.  Idempotent."""
        if self._since_s is None:
            self._since_s = self._clock()

    def resume(self) -> None:
        """Go on.  Idempotent."""
        if self._since_s is not None:
            self._paused_s += self._clock() - self._since_s
            self._since_s = None
