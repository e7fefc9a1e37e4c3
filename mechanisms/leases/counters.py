"""Engine counters worked out from how far its requests have come.

An engine that tells no metrics still shows how many tokens each request has.  Between two looks,
every running request gets one token per iteration, so the one that came furthest tells how many
iterations there were, and the sum over all is the batch size summed over them.  That holds without
speculation; with it, iterations are overcounted by the accepted length.  The KV cache in use is the
contexts' sum over the capacity: prefixes that requests share are counted once for each.
"""

import math
from dataclasses import dataclass, field

from steersman.mechanisms.fleet import ReplicaInfo, ReplicaStats
from steersman.mechanisms.leases.lease import EngineReading

MEMORY_S = 30.0
"""Over which the speed of a sequence is averaged: it follows the batch size, not each hiccup."""


@dataclass(eq=False, slots=True)
class Speed:
    """Tokens per second that one sequence gets, as seen lately."""

    _tokens: float = 0.0
    _seconds: float = 0.0

    def saw(self, tokens: float, seconds: float) -> None:
        """Sequences were watched for so many seconds in all, and got so many tokens."""
        if seconds <= 0:
            return
        keep = math.exp(-seconds / MEMORY_S)
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds

    @property
    def tokens_per_s(self) -> float:
        """0: nothing was seen yet."""
        return self._tokens / self._seconds if self._seconds else 0.0


@dataclass(eq=False, slots=True)
class Counters:
    """Of one engine, since it was first seen."""

    weight_version: int = 0
    speed: Speed = field(default_factory=Speed)
    paused: bool = False
    _iterations: int = 0
    _busy_s: float = 0.0
    _sequences_run: float = 0.0
    _requests: int = 0
    _running: int = 0
    _context_tokens: int = 0
    _tokens: dict[str, int] = field(default_factory=dict)
    _ended: list[int] = field(default_factory=list)
    """Tokens that requests wrote between the last look and their end."""
    _reported_s: float = float("-inf")

    def take(self, reading: EngineReading, now_s: float) -> None:
        """One look."""
        before, seconds = self._tokens, now_s - self._reported_s
        steps = {key: n - before.get(key, 0) for key, n in reading.tokens.items()}
        # negative where an id is reused, which is no progress
        steps = {key: max(step, 0) for key, step in steps.items()}
        if math.isfinite(seconds) and not (self.paused or reading.paused):
            written = sum(steps.values()) + sum(self._ended)
            self._iterations += max([*steps.values(), *self._ended], default=0)
            self._sequences_run += written
            if written:
                self._busy_s += seconds
            stayed = [step for key, step in steps.items() if key in before]
            if stayed:
                # all were watched at the same time: it is one stretch of it
                self.speed.saw(sum(stayed) / len(stayed), seconds)
        self._ended.clear()
        self._tokens = dict(reading.tokens)
        self._running = sum(step > 0 for step in steps.values())
        self._requests, self._context_tokens = reading.requests, reading.context_tokens
        self.paused = reading.paused
        if reading.weight_version is not None:
            self.weight_version = reading.weight_version
        self._reported_s = now_s

    def ended(self, attempt_id: str, tokens: int, seconds: float) -> None:
        """A request has ended; without looks, its own pace is what is known of the engine's."""
        if math.isfinite(self._reported_s):
            self._ended.append(max(tokens - self._tokens.pop(attempt_id, 0), 0))
        else:
            self.speed.saw(tokens, seconds)

    def go_blind(self) -> None:
        """There will be no more looks; that it was paused is not believed for ever."""
        self._tokens, self._ended = {}, []
        self.paused, self._reported_s = False, float("-inf")

    def stats(self, info: ReplicaInfo, leases: int) -> ReplicaStats:
        """As a fleet tells them; `leases` are open on it."""
        if not math.isfinite(self._reported_s):
            running = min(leases, info.max_num_seqs)
            return ReplicaStats(
                running=running, waiting=leases - running, weight_version=self.weight_version
            )
        running = min(max(self._running, 0), info.max_num_seqs)
        capacity = info.kv_capacity_tokens
        return ReplicaStats(
            running=running,
            waiting=max(self._requests - running, 0),
            kv_cache_usage=min(self._context_tokens / capacity, 1.0) if capacity else 0.0,
            iterations=self._iterations,
            busy_s=self._busy_s,
            sequences_run=self._sequences_run,
            weight_version=self.weight_version,
            reported_s=self._reported_s,
        )
