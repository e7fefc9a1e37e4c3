"""Where errands are carried out: one engine as they see it, and whom they tell."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

from steersman.mechanisms.fleet import Attempt
from steersman.mechanisms.http_vllm.ask import Abilities
from steersman.mechanisms.http_vllm.wire import Wire


@dataclass(frozen=True, slots=True)
class Place:
    """Where an errand is carried out, and whom it tells."""

    wire: Wire
    base: URL
    abilities: Abilities
    is_well: Callable[[], Awaitable[bool]]
    """Asks whether the engine lives after a sign that it may not."""
    heard: Callable[[int | None], None]
    """Called when something was written, with the weight version if it was told."""
    weight_version: Callable[[], int]
    usage: Callable[[dict[str, Any]], None]
    """Called with the event that follows the last token."""
    ended: Callable[[Attempt], None]
    """Called when an attempt that was carried out there has ended."""
    _urls: dict[str, URL] = field(default_factory=dict)

    def url(self, path: str) -> URL:
        """Of one of the dialects' routes there."""
        if path not in self._urls:
            self._urls[path] = self.base.with_path(self.base.path.rstrip("/") + path)
        return self._urls[path]
