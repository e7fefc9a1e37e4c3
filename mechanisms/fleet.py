"""The contract between mechanisms and a fleet of engines.

A fleet takes token ids and gives token ids back.  One *attempt* is one request on one replica; a
trajectory may need several.  Every attempt ends exactly once, whatever happens to its replica, and
its end carries every token that is known of it.  Nothing here is per token: progress comes in as
batches, at least every `poll_s`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from steersman.estimators.observation import AS_REPLICA


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to sample; the fields of vLLM's SamplingParams that survive a migration unchanged.

    Penalties, `min_tokens` and stop strings are left out on purpose: after a migration the tokens
    already written count as prompt, and each of these would change its meaning.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """The end-of-sequence token belongs here: engines run without a tokenizer."""
    ignore_eos: bool = False
    seed: int | None = None
    """Seeds each attempt; an attempt after the first draws a fresh stream from (seed, attempt)."""


class EndReason(StrEnum):
    """Why an attempt ended."""

    STOP = "stop"
    """The model ended the sequence."""
    LENGTH = "length"
    """The attempt's `max_tokens` are written."""
    ABORT = "abort"
    """It was aborted; the partial tokens are here."""
    LOST = "lost"
    """Its replica died or stalled; the tokens known until then are here."""
    ERROR = "error"
    """The engine failed it; another one may not."""
    REFUSED = "refused"
    """The request itself is wrong, or cannot be carried on: no engine would take it."""


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Output tokens [start, end) of an attempt were written by `weight_version`."""

    weight_version: int
    start: int
    end: int


class Payload(Protocol):
    """What a request carries beyond tokens, for a fleet that speaks for a client of its own.

    It lives as long as its trajectory and goes with each attempt of it.
    """

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, as well as it is known here (a text is tokenized elsewhere)."""

    @property
    def bound(self) -> bool:
        """Whether no other replica can ever go on where one stopped, without changing what is
        sampled."""

    @property
    def movable(self) -> bool:
        """Whether another one can now."""

    @property
    def restartable(self) -> bool:
        """Whether nobody has seen any of it yet."""

    def renew(self) -> None:
        """Forget what was written: a fresh sample takes its slot."""


@dataclass(frozen=True, slots=True)
class AttemptRequest:
    """One request to one replica."""

    attempt_id: str
    """Unique for ever: two live requests of one id would be aborted together."""
    token_ids: list[int]
    """Prompt and the tokens written by earlier attempts."""
    max_tokens: int
    """Remaining budget, >= 1."""
    sampling: Sampling
    priority: int = 0
    """Lower is served first, where the engine schedules by priority."""
    prompt_key: int = 0
    """`Prompt.key`, by which drafts are found; so is the next one."""
    group_id: int = -1
    draft_tokens: int = AS_REPLICA
    """Tokens drafted for it per iteration, or `AS_REPLICA`."""
    run_key: int = 0
    """Of the run it belongs to: nothing is drafted from other runs' texts."""
    payload: Payload | None = None


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt, with everything it wrote."""

    reason: EndReason
    tokens: list[int]
    logprobs: list[float]
    """Raw model log-probability of each token (temperature 1, no filter)."""
    spans: list[VersionSpan]
    """Cover all of `tokens`, in order."""
    detail: str = ""
    drafted_at: list[int] = field(default_factory=list)
    """Tokens drafted for it at each position, as far as any were; so are those accepted."""
    accepted_at: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Attempt:
    """A running request as its submitter sees it."""

    request: AttemptRequest
    replica: str
    generated_tokens: int = 0
    """Tokens known so far; grows until `end` is set."""
    end: AttemptEnd | None = None
    _callbacks: list[Callable[["Attempt"], None]] = field(default_factory=list)

    def on_end(self, callback: Callable[["Attempt"], None]) -> None:
        """Call `callback` once when the attempt ends (now, if it has)."""
        if self.end is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    def finish(self, end: AttemptEnd) -> bool:
        """For fleets: set the end and tell the submitter.  False if it had ended already."""
        if self.end is not None:
            return False
        self.end = end
        self.generated_tokens = len(end.tokens)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
        return True


class ReplicaStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a replica last reported; field meanings as in `ReplicaTable`."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache since the start."""
    prefix_hits: int = 0
    prefill_tokens: int = 0
    asked_at: list[int] = []
    """By draft position, so are the next two; empty without speculation, or where the engine does
    not count what its drafter did not find."""
    drafted_at: list[int] = []
    accepted_at: list[int] = []
    draft_tokens: int = 0
    draft_classes: dict[str, list[int]] = {}
    """By where drafts came from: drafts verified, tokens drafted, tokens accepted, since the
    start."""
    iterations: int = 0
    busy_s: float = 0.0
    sequences_run: float = 0.0
    weight_version: int = 0
    reported_s: float = float("-inf")
    """When it arrived here, on this process's monotonic clock (`time.monotonic`)."""


class ReplicaInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What does not change while a replica lives."""

    name: str
    pool: str = "bulk"
    max_num_seqs: int = 256
    max_model_len: int = 32768
    kv_capacity_tokens: int = 0
    max_draft_tokens: int = 0
    dtype: str = "float32"
    """Element type of the engine's weights: it sets the tolerance of log-probability checks."""


NamedTensors = Sequence[tuple[str, Any]]
"""(name, torch tensor on CPU) as the engine's checkpoint names them."""


@dataclass(frozen=True, slots=True)
class LogprobProbe:
    """A fixed sequence and the trainer's log-probabilities of its tokens, to check a push."""

    token_ids: list[int]
    logprobs: list[float]
    """log p(token_ids[i] | token_ids[:i]) for i = 1.., so one shorter than `token_ids`."""


class Fleet(Protocol):
    """A set of replicas."""

    changed: asyncio.Event
    """Set whenever an attempt ended or the set of living replicas changed."""

    @property
    def replicas(self) -> Sequence[ReplicaInfo]:
        """All replicas ever seen, in a fixed order; dead ones stay."""

    def is_alive(self, replica: str) -> bool:
        """Whether attempts may be started there."""

    def stats(self, replica: str) -> ReplicaStats:
        """The last report; never waits."""

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        """Begin an attempt.  Never waits and never raises: a failure is the attempt's end."""

    def abort(self, attempt: Attempt) -> None:
        """Ask for the attempt's end; it arrives through `attempt` (maybe with another reason)."""

    def draft(self, replica: str, draft_tokens: int) -> None:
        """Draft so many tokens per sequence and iteration there, at most `max_draft_tokens`; what
        has a number of its own keeps it.  Never waits and never raises."""

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        """Draft so many for this attempt alone, from now on; `AS_REPLICA`: as its replica."""

    async def update_weights(
        self, tensors: NamedTensors, weight_version: int, probes: Iterable[LogprobProbe] = ()
    ) -> float | None:
        """Load new weights on every living replica; answers the probes' largest difference.

        Requests in flight survive: they are held, their KV cache is recomputed with the new
        weights, and they go on.  Then every replica scores the probes; raises
        `WeightMismatchError` if one disagrees with the trainer.
        """

    async def score(self, replica: str, token_ids: list[int]) -> list[float]:
        """The replica's log p(token_ids[i] | token_ids[:i]) for i = 1.. ."""

    async def close(self) -> None:
        """Stop what this object started; attempts still running end as lost.  Idempotent."""
