"""What a gateway needs of a fleet beyond `Fleet`: its engines, and their control plane."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from steersman.mechanisms.fleet import Fleet
from steersman.mechanisms.http_vllm.ask import Abilities, Answer


class ServedEngine(Protocol):
    """One engine as a gateway looks at it."""

    @property
    def url(self) -> str:
        """Where it is."""

    @property
    def abilities(self) -> Abilities:
        """What it offers."""

    @property
    def alive(self) -> bool:
        """Whether it answers."""

    @property
    def stale(self) -> bool:
        """Whether it lacks weights that the others have: nothing is placed there."""

    @property
    def paused(self) -> bool:
        """Whether the trainer has paused it."""

    @property
    def weight_version(self) -> int:
        """As it said, or as it was given."""

    @property
    def gauges(self) -> dict[str, float]:
        """Its own metrics, by name."""


class ServedFleet(Fleet, Protocol):
    """Attempts carry an `Ask` as their payload."""

    def engine(self, name: str) -> ServedEngine:
        """The engine of that name; `UnknownNameError` if there is none."""

    async def request(
        self,
        name: str,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """One engine's answer to a request of the control plane; `FleetError` if there is none."""

    def set_paused(self, name: str, paused: bool) -> None:
        """The trainer has paused it, or lets it go on."""

    def set_weight_version(self, name: str, weight_version: int) -> None:
        """It has these weights."""

    def expect_weights(self, weight_version: int) -> None:
        """All engines that live have these weights now."""
