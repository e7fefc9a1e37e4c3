"""One trajectory being carried out: a state machine over a fleet, with no task of its own.

Commands (`place`, `leave`) and the ends of attempts are its only inputs; each runs to completion
without waiting.  What the trajectory has written lives here and nowhere else, so that a replica
that dies takes nothing along but the tokens it never reported.

Leaving is always the same three steps, whatever for: send the abort, take what comes back (partial
tokens, or the natural end if that was faster), then do what was intended: go on elsewhere, park, or
end.  A natural end beats every intention.

Why continuing from a prefix is exact: p(rest | prefix) is what the engine samples either way, and
the moment of the cut does not depend on the tokens dropped by it.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import msgspec

from steersman.estimators.lifecycle import (
    REPLACED,
    CorrectnessClass,
    Disposition,
    Phase,
    check_transition,
)
from steersman.estimators.observation import AS_REPLICA
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    AttemptRequest,
    EndReason,
    Fleet,
    Payload,
    Sampling,
)

MAX_FAILURES = 3
"""Attempts an engine may fail before the trajectory is FAILED: a request that no engine accepts
must not circulate for ever, while one bad engine must not end it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Output tokens [start, end) were written by one weight version on one replica."""

    weight_version: int
    replica: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TrajectorySpec:
    """What is asked for; never changes."""

    trajectory_id: int
    prompt_token_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    priority: int = 0
    prompt_key: int = 0
    group_id: int = -1
    payload: Payload | None = None


@dataclass(frozen=True, slots=True)
class ToReplica:
    """Leave in order to go on at `replica`."""

    replica: str


@dataclass(frozen=True, slots=True)
class ToParking:
    """Leave in order to wait for a later step."""


@dataclass(frozen=True, slots=True)
class ToEnd:
    """Leave in order to end."""

    disposition: Disposition
    correctness: CorrectnessClass = CorrectnessClass.EXACT
    """What ending it this way does to the sample; not charged if its natural end was faster."""


Intent = ToReplica | ToParking | ToEnd


class Listener(Protocol):
    """Whoever keeps the books.  Called in the middle of a change: must not command back."""

    def phase_changed(self, execution: "Execution", old: Phase, why: str) -> None:
        """`execution.phase` is new."""

    def attempt_started(self, execution: "Execution", attempt: Attempt) -> None:
        """An attempt is on its way to a replica."""

    def attempt_ended(self, execution: "Execution", attempt: Attempt) -> None:
        """An attempt has ended and its tokens are absorbed."""


@dataclass(eq=False)
class Execution:
    """A trajectory in the middle of its life, and its result after it."""

    spec: TrajectorySpec
    fleet: Fleet
    listener: Listener
    run_id: str
    """Keeps attempt ids apart from those of other runs on the same fleet."""
    phase: Phase = Phase.QUEUED
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    disposition: Disposition | None = None
    correctness: CorrectnessClass = CorrectnessClass.EXACT
    weight: float = 1.0
    """Of the answer in sums over trajectories."""
    moves: int = 0
    """Times it went on on another replica by a decision."""
    deferrals: int = 0
    attempts: int = 0
    failures: int = 0
    started_version: int | None = None
    """Weight version of its replica when its present attempt began."""
    draft_tokens: int = AS_REPLICA
    """Tokens drafted for it per iteration, wherever it runs."""
    detail: str = ""
    """The last engine error, for a person."""
    attempt: Attempt | None = None
    intent: Intent | None = None

    @property
    def generated_tokens(self) -> int:
        """Tokens known so far, those of the present attempt included."""
        running = self.attempt.generated_tokens if self.attempt else 0
        return len(self.tokens) + running

    @property
    def replica(self) -> str | None:
        """Replica of the present attempt."""
        return self.attempt.replica if self.attempt else None

    @property
    def oldest_weight_version(self) -> int | None:
        """Version that wrote the first token, or is about to; None if it never ran."""
        if not self.segments:
            return self.started_version
        return min(s.weight_version for s in self.segments)

    def place(self, replica: str) -> bool:
        """Start an attempt on `replica`.  False: it is not waiting, or the replica is gone."""
        if self.phase is not Phase.QUEUED or not self.fleet.is_alive(replica):
            return False
        self._start(replica, "placed")
        return True

    def leave(self, intent: Intent, why: str) -> bool:
        """Leave the present replica, or the queue, for `intent`.  False: nothing to leave."""
        if self.phase in (Phase.QUEUED, Phase.PARKED):
            return self._leave_waiting(intent, why)
        if self.phase is Phase.LEAVING and isinstance(intent, ToEnd):
            self.intent = intent  # an end asked for overrides a move already under way
            return True
        if self.phase is not Phase.RUNNING or not _may_leave(self.spec.payload, intent):
            return False
        self.intent = intent
        self._enter(Phase.LEAVING, why)
        assert self.attempt is not None
        self.fleet.abort(self.attempt)
        return True

    def weigh(self, factor: float) -> None:
        """A known coin decided over it: 1 / probability if it was spared, 0 if not."""
        self.weight *= factor
        self.correctness = max(self.correctness, CorrectnessClass.MODIFIED)

    def speculate(self, draft_tokens: int) -> bool:
        """Draft so many tokens for it from now on.  False: it does not run."""
        if self.phase is not Phase.RUNNING or self.attempt is None:
            return False
        self.draft_tokens = draft_tokens
        self.fleet.speculate(self.attempt, draft_tokens)
        return True

    def resume(self, why: str) -> bool:
        """Bring a parked trajectory back to the queue."""
        if self.phase is not Phase.PARKED:
            return False
        self._enter(Phase.QUEUED, why)
        return True

    def _leave_waiting(self, intent: Intent, why: str) -> bool:
        match intent:
            case ToParking() if self.phase is Phase.QUEUED:
                self.deferrals += 1
                self._enter(Phase.PARKED, why)
            case ToEnd():
                self._end_by(intent, why)
            case _:
                return False
        return True

    def _start(self, replica: str, why: str) -> None:
        spec, number = self.spec, self.attempts
        self.attempts += 1
        request = AttemptRequest(
            attempt_id=f"{self.run_id}-{spec.trajectory_id}-{number}",
            token_ids=spec.prompt_token_ids + self.tokens,
            max_tokens=spec.max_new_tokens - len(self.tokens),
            sampling=attempt_sampling(spec.sampling, number),
            priority=spec.priority,
            prompt_key=spec.prompt_key,
            group_id=spec.group_id,
            run_key=_run_key(self.run_id),
            draft_tokens=self.draft_tokens,
            payload=spec.payload,
        )
        self.started_version = self.fleet.stats(replica).weight_version
        self.attempt = self.fleet.start(replica, request)
        self._enter(Phase.RUNNING, why)
        self.listener.attempt_started(self, self.attempt)
        self.attempt.on_end(self._attempt_ended)

    def _attempt_ended(self, attempt: Attempt) -> None:
        end, intent = attempt.end, self.intent
        assert end is not None
        assert attempt is self.attempt
        self._absorb(attempt.replica, end)
        self.attempt, self.intent = None, None
        self.listener.attempt_ended(self, attempt)
        natural = self._natural_end(end)
        if natural is not None:
            self._end(natural, end.reason)
        elif intent is not None:
            self._follow(intent, end)
        elif end.reason is EndReason.REFUSED:
            self.detail = end.detail
            self._end(Disposition.FAILED, f"refused: {end.detail}")
        elif end.reason is EndReason.ERROR and self._has_failed(end):
            self._end(Disposition.FAILED, f"failed {self.failures} times: {end.detail}")
        else:
            self._enter(Phase.QUEUED, f"{end.reason}: {end.detail}" if end.detail else end.reason)

    def _absorb(self, replica: str, end: AttemptEnd) -> None:
        base = len(self.tokens)
        self.tokens.extend(end.tokens)
        self.logprobs.extend(end.logprobs)
        for span in end.spans:
            if span.end > span.start:
                self.segments.append(
                    Segment(span.weight_version, replica, base + span.start, base + span.end)
                )
        if len({segment.weight_version for segment in self.segments}) > 1:
            self.correctness = max(self.correctness, CorrectnessClass.CORRECTED)

    def _natural_end(self, end: AttemptEnd) -> Disposition | None:
        """How the trajectory is complete, or None.

        The end message can be lost while the tokens are not (a replica dies right after the last
        one), so completeness is judged by the tokens, not by the reason alone.
        """
        sampling = self.spec.sampling
        stopped = (
            bool(self.tokens)
            and self.tokens[-1] in sampling.stop_token_ids
            and not sampling.ignore_eos
        )
        if end.reason is EndReason.STOP or stopped:
            return Disposition.FINISHED
        if end.reason is EndReason.LENGTH or len(self.tokens) >= self.spec.max_new_tokens:
            return Disposition.TRUNCATED
        return None

    def _has_failed(self, end: AttemptEnd) -> bool:
        self.failures += 1
        self.detail = end.detail
        return self.failures >= MAX_FAILURES

    def _follow(self, intent: Intent, end: AttemptEnd) -> None:
        match intent:
            case ToReplica(replica):
                self.moves += 1
                if self.fleet.is_alive(replica):
                    self._start(replica, "continued on its target")
                else:
                    self._enter(Phase.QUEUED, f"target {replica} is gone")
            case ToParking():
                self.deferrals += 1
                self._enter(Phase.PARKED, "parked")
            case ToEnd():
                self._end_by(intent, end.reason)

    def _end_by(self, intent: ToEnd, why: str) -> None:
        self.correctness = max(self.correctness, intent.correctness)
        self._end(intent.disposition, why)

    def _end(self, disposition: Disposition, why: str) -> None:
        self.disposition = disposition
        self._enter(Phase.ENDED, why)

    def _enter(self, phase: Phase, why: str) -> None:
        old = self.phase
        check_transition(self.spec.trajectory_id, old, phase)
        self.phase = phase
        self.listener.phase_changed(self, old, why)


def _may_leave(payload: Payload | None, intent: Intent) -> bool:
    """Whether what its client was told so far allows it."""
    if payload is None:
        return True
    if isinstance(intent, ToEnd):
        return payload.restartable or intent.disposition not in REPLACED
    return payload.movable


def attempt_sampling(sampling: Sampling, number: int) -> Sampling:
    """The sampling of attempt `number`: a seeded later attempt must not repeat the first stream.

    An engine starts a request's random stream at its seed, so the same seed after a migration
    would reuse the numbers that drew the prefix, and tie the continuation to it.
    """
    if sampling.seed is None or number == 0:
        return sampling
    return replace_seed(sampling, mixed_seed(sampling.seed, number))


def replace_seed(sampling: Sampling, seed: int) -> Sampling:
    """`sampling` with another seed."""
    return msgspec.structs.replace(sampling, seed=seed)


@lru_cache(maxsize=64)
def _run_key(run_id: str) -> int:
    return mixed_seed(run_id)


def mixed_seed(*parts: int | str) -> int:
    """A 31-bit number that depends on every part and is the same on every machine."""
    text = ",".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1
