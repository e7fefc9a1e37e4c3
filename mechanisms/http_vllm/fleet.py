"""A fleet of vLLM servers that somebody else has started, reached over HTTP.

What its requests say is their payload's business (`ask`); this tells engines apart that live from
those that do not, and gives every attempt its one end.  Weights are loaded by the trainer itself.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from yarl import URL

from steersman.estimators.errors import FleetError, InvalidInputError, UnknownNameError
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptRequest,
    LogprobProbe,
    NamedTensors,
    ReplicaInfo,
    ReplicaStats,
)
from steersman.mechanisms.http_vllm.ask import Answer, Ask
from steersman.mechanisms.http_vllm.dialects.tokens import ask_of
from steersman.mechanisms.http_vllm.engine import Engine
from steersman.mechanisms.http_vllm.probe import Found, probe
from steersman.mechanisms.http_vllm.settings import HttpSettings, clean_urls
from steersman.mechanisms.http_vllm.wire import Wire

__all__ = ["HttpFleet", "HttpSettings"]


class HttpFleet:
    """Implements `Fleet`.  Made by `attach`."""

    def __init__(self, wire: Wire) -> None:
        self.changed = asyncio.Event()
        self._wire = wire
        self._engines: dict[str, Engine] = {}

    @classmethod
    async def attach(
        cls,
        urls: Sequence[str],
        settings: HttpSettings = HttpSettings(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Find out what answers at `urls`; engines that do not answer yet may come later.

        Raises `InvalidInputError` where a URL is none or models differ, and `FleetError` where
        nothing answers at all.
        """
        bases = clean_urls(urls)
        fleet = cls(Wire(settings))
        try:
            await fleet._find(bases, settings, clock)
        except BaseException:
            await fleet.close()
            raise
        return fleet

    async def _find(
        self, urls: Sequence[str], settings: HttpSettings, clock: Callable[[], float]
    ) -> None:
        answers = await asyncio.gather(
            *(probe(self._wire, URL(url)) for url in urls), return_exceptions=True
        )
        found: list[Found | None] = []
        problems: list[str] = []
        for answer in answers:
            if isinstance(answer, FleetError):
                problems.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            found.append(answer if isinstance(answer, Found) else None)
        like = next((one for one in found if one is not None), None)
        if like is None:
            raise FleetError("; ".join(problems))
        for url, one in zip(urls, found, strict=True):
            if one is not None and one.names != like.names:
                raise InvalidInputError(
                    f"engine {url} serves {', '.join(one.names)}, another one "
                    f"{', '.join(like.names)}: all engines of a fleet serve the same models"
                )
        for number, (url, one) in enumerate(zip(urls, found, strict=True)):
            name = f"engine-{number}"
            self._engines[name] = Engine(
                name, url, self._wire, settings, one, like, self.changed.set, clock
            )
        await asyncio.gather(*(engine.begin() for engine in self._engines.values()))

    @property
    def replicas(self) -> Sequence[ReplicaInfo]:
        """In the order of the URLs."""
        return [engine.info for engine in self._engines.values()]

    def engine(self, name: str) -> Engine:
        """The engine of that name."""
        if (engine := self._engines.get(name)) is None:
            raise UnknownNameError("engine", name, self._engines)
        return engine

    def is_alive(self, replica: str) -> bool:
        """Whether it answers, with the weights that all others have."""
        engine = self._engines[replica]
        return engine.alive and not engine.stale

    def stats(self, replica: str) -> ReplicaStats:
        return self._engines[replica].stats()

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        engine, attempt = self._engines[replica], Attempt(request, replica)
        ask = request.payload
        if ask is None:
            ask = ask_of(request, engine.abilities, engine.abilities.model)
        assert isinstance(ask, Ask)
        engine.start(attempt, ask)
        return attempt

    def abort(self, attempt: Attempt) -> None:
        self._engines[attempt.replica].abort(attempt)

    def draft(self, replica: str, draft_tokens: int) -> None:
        """A server's drafts cannot be steered from outside."""

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        """A server's drafts cannot be steered from outside."""

    async def update_weights(
        self, tensors: NamedTensors, weight_version: int, probes: Iterable[LogprobProbe] = ()
    ) -> float | None:
        raise FleetError("engines behind HTTP get their weights from the trainer itself")

    async def score(self, replica: str, token_ids: list[int]) -> list[float]:
        raise FleetError("engines behind HTTP are not asked for scores")

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
        return await self.engine(name).call(method, path, body, dict(headers or {}), params)

    def set_paused(self, name: str, paused: bool) -> None:
        """The trainer has paused it, or lets it go on: a paused engine does not stall."""
        self.engine(name).pause(paused)

    def set_weight_version(self, name: str, weight_version: int) -> None:
        """The trainer has loaded new weights there."""
        self.engine(name).given(weight_version)

    def expect_weights(self, weight_version: int) -> None:
        """The trainer has loaded new weights on every engine that lives; one that is away gets
        nothing to do when it comes back, until it has them too."""
        for engine in self._engines.values():
            engine.expect(weight_version)

    async def close(self) -> None:
        """Leave the engines as they are; attempts still running end as lost."""
        why = "the fleet was closed"
        await asyncio.gather(*(engine.close(why) for engine in self._engines.values()))
        await self._wire.close()
