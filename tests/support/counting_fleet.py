"""A fleet whose engines count like real ones and whose every iteration takes what a profile says.

Its engines write a token per millisecond, whatever they *say* it took: only the counters matter.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    AttemptRequest,
    EndReason,
    LogprobProbe,
    NamedTensors,
    ReplicaInfo,
    ReplicaStats,
)
from steersman.mechanisms.simulated.profile import HardwareProfile

BLOCK = 32
"""Tokens at the end of a cached prompt that are computed again."""


@dataclass
class _Engine:
    """One replica."""

    profile: HardwareProfile
    running: list[Attempt] = field(default_factory=list)
    cached: set[tuple[int, ...]] = field(default_factory=set)
    idle: bool = True
    iterations: int = 0
    busy_s: float = 0.0
    sequences: float = 0.0
    prefill_tokens: int = 0

    def iterate(self) -> None:
        """Every running attempt writes one token."""
        computed = 0
        for attempt in self.running:
            prompt = tuple(attempt.request.token_ids)
            if attempt.generated_tokens == 0:
                computed += min(BLOCK, len(prompt)) if prompt in self.cached else len(prompt)
                self.cached.add(prompt)
            attempt.generated_tokens += 1
        if not self.idle:
            kv = sum(len(a.request.token_ids) + a.generated_tokens for a in self.running)
            self.iterations += 1
            self.sequences += len(self.running)
            self.prefill_tokens += computed
            self.busy_s += self.profile.iteration_s(float(len(self.running)), float(kv))
            self.busy_s += self.profile.prefill_s(computed) if computed else 0.0
        for attempt in list(self.running):
            if attempt.generated_tokens >= attempt.request.max_tokens:
                self.end(attempt, EndReason.LENGTH)
        self.idle = not self.running

    def end(self, attempt: Attempt, reason: EndReason) -> None:
        self.running.remove(attempt)
        attempt.finish(AttemptEnd(reason, [0] * attempt.generated_tokens, [], []))


class CountingFleet:
    """Implements `Fleet`, as far as a measurement needs it."""

    def __init__(self, profile: HardwareProfile, max_model_len: int) -> None:
        self.changed = asyncio.Event()
        self.replicas: Sequence[ReplicaInfo] = [
            ReplicaInfo(name, max_model_len=max_model_len) for name in ("a", "b")
        ]
        self._engines = {info.name: _Engine(profile) for info in self.replicas}
        self._tasks = [asyncio.create_task(_run(engine)) for engine in self._engines.values()]

    def is_alive(self, replica: str) -> bool:
        return replica in self._engines

    def stats(self, replica: str) -> ReplicaStats:
        engine = self._engines[replica]
        return ReplicaStats(
            running=len(engine.running),
            iterations=engine.iterations,
            busy_s=engine.busy_s,
            sequences_run=engine.sequences,
            prefill_tokens=engine.prefill_tokens,
        )

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        attempt = Attempt(request, replica)
        self._engines[replica].running.append(attempt)
        return attempt

    def abort(self, attempt: Attempt) -> None:
        if attempt.end is None:
            self._engines[attempt.replica].end(attempt, EndReason.ABORT)

    def draft(self, replica: str, draft_tokens: int) -> None:
        """Nothing is drafted here."""

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        """Nothing is drafted here."""

    async def update_weights(
        self, tensors: NamedTensors, weight_version: int, probes: Iterable[LogprobProbe] = ()
    ) -> float | None:
        raise NotImplementedError

    async def score(self, replica: str, token_ids: list[int]) -> list[float]:
        raise NotImplementedError

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _run(engine: _Engine) -> None:
    while True:
        await asyncio.sleep(0.001)
        if engine.running:
            engine.iterate()
        else:
            engine.idle = True
