"""A fleet without engines: a deterministic "language model", moved on token by token by the test.

The next token is a hash of everything before it, so the one right answer to a prompt is known, and
a trajectory that lost, doubled or skipped a token anywhere cannot end with it.  Nothing happens by
itself: `advance` writes tokens, `confirm` delivers ends and aborts, `kill` kills.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
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
    VersionSpan,
)

EOS = 2
VOCAB = 50


def next_token(context: Sequence[int], stop_share: float = 0.04) -> int:
    """The only continuation of `context`."""
    digest = hashlib.blake2b(bytes(context), digest_size=4).digest()
    if int.from_bytes(digest[:2]) < stop_share * 65536:
        return EOS
    return 3 + digest[3] % (VOCAB - 3)


def reference(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The undisturbed answer to `prompt`."""
    tokens: list[int] = []
    while len(tokens) < max_new_tokens and (not tokens or tokens[-1] != EOS):
        tokens.append(next_token([*prompt, *tokens]))
    return tokens


@dataclass
class _Running:
    attempt: Attempt
    tokens: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    end: EndReason | None = None
    aborted: bool = False


class FakeFleet:
    """Implements `Fleet`."""

    def __init__(
        self,
        replicas: int = 2,
        max_model_len: int = 512,
        max_num_seqs: int = 64,
        max_draft_tokens: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.changed = asyncio.Event()
        self._clock = clock
        self.weight_version = 0
        self.refuse: set[str] = set()
        """Replicas that answer every request with an error."""
        self._infos = [
            ReplicaInfo(
                name=f"r{i}",
                pool="tail" if i == replicas - 1 and replicas > 2 else "bulk",
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_draft_tokens=max_draft_tokens,
            )
            for i in range(replicas)
        ]
        self._dead: set[str] = set()
        self._running: dict[str, list[_Running]] = {info.name: [] for info in self._infos}
        self.started: list[AttemptRequest] = []
        self.draft_tokens: dict[str, int] = {}
        """By replica, as last told; by attempt in the next one."""
        self.speculated: dict[str, int] = {}

    @property
    def replicas(self) -> Sequence[ReplicaInfo]:
        return self._infos

    def is_alive(self, replica: str) -> bool:
        return replica not in self._dead

    def stats(self, replica: str) -> ReplicaStats:
        return ReplicaStats(
            running=len(self._running[replica]),
            weight_version=self.weight_version,
            draft_tokens=self.draft_tokens.get(replica, 0),
            reported_s=self._clock(),
        )

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        self.started.append(request)
        attempt = Attempt(request, replica)
        if replica in self._dead:
            attempt.finish(AttemptEnd(EndReason.LOST, [], [], [], "dead on arrival"))
        elif replica in self.refuse:
            attempt.finish(AttemptEnd(EndReason.ERROR, [], [], [], "refused"))
        else:
            self._running[replica].append(_Running(attempt))
        return attempt

    def abort(self, attempt: Attempt) -> None:
        for running in self._running[attempt.replica]:
            if running.attempt is attempt:
                running.aborted = True

    def advance(self, replica: str, tokens: int = 1) -> None:
        """Every attempt there that has not ended writes up to `tokens` tokens."""
        for running in self._running[replica]:
            for _ in range(tokens):
                if running.end is None:
                    self._write(running)

    def confirm(self, replica: str) -> None:
        """Ends and aborts of that replica become known here."""
        for running in list(self._running[replica]):
            if running.end is not None:
                self._finish(replica, running, running.end)
            elif running.aborted:
                self._finish(replica, running, EndReason.ABORT)

    def kill(self, replica: str) -> None:
        """The replica is gone; what it wrote and reported is known, its ends are not."""
        self._dead.add(replica)
        for running in list(self._running[replica]):
            self._finish(replica, running, EndReason.LOST)
        self.changed.set()

    async def run(self, tokens: int = 1) -> None:
        """Let every living replica work until cancelled."""
        while True:
            for info in self._infos:
                self.advance(info.name, tokens)
                self.confirm(info.name)
            await asyncio.sleep(0.001)

    def _write(self, running: _Running) -> None:
        request = running.attempt.request
        token = next_token([*request.token_ids, *running.tokens])
        running.tokens.append(token)
        running.versions.append(self.weight_version)
        running.attempt.generated_tokens = len(running.tokens)
        if token == EOS:
            running.end = EndReason.STOP
        elif len(running.tokens) == request.max_tokens:
            running.end = EndReason.LENGTH

    def _finish(self, replica: str, running: _Running, reason: EndReason) -> None:
        self._running[replica].remove(running)
        spans: list[VersionSpan] = []
        for i, version in enumerate(running.versions):
            if spans and spans[-1].weight_version == version:
                spans[-1] = VersionSpan(version, spans[-1].start, i + 1)
            else:
                spans.append(VersionSpan(version, i, i + 1))
        logprobs = [-float(token) for token in running.tokens]
        running.attempt.finish(AttemptEnd(reason, running.tokens, logprobs, spans))
        self.changed.set()

    def draft(self, replica: str, draft_tokens: int) -> None:
        self.draft_tokens[replica] = draft_tokens

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        self.speculated[attempt.request.attempt_id] = draft_tokens

    async def update_weights(
        self, tensors: NamedTensors, weight_version: int, probes: Iterable[LogprobProbe] = ()
    ) -> float | None:
        self.weight_version = weight_version
        return None

    async def score(self, replica: str, token_ids: list[int]) -> list[float]:
        return [-float(token) for token in token_ids[1:]]

    async def close(self) -> None:
        for info in self._infos:
            self.kill(info.name)
