"""What goes into the simulator and what comes out, as frozen values.

An iteration of a replica with b running sequences whose contexts hold kv tokens takes

    tau(b, kv) = (D(b) + token_s * kv + knee_s * max(kv / kv_capacity_tokens - KNEE, 0)) / speed
    D(b) = fixed_s + cost_factor * sequence_s * b                the line, or, with a table,
           fixed_s + cost_factor * (batch_s[b - 1] - fixed_s)

and writes `tokens_per_iteration` tokens of each of them.  Same names as in `ThroughputForecast`.
One that prefills p tokens of n new sequences takes longer by
(prefill_token_s * p + request_s * n + the step) / speed.  The step is
prefill_step_s; with a table (a mixture of experts reads each once, for prompts and batch alike) it
is max(prefill_step_s - (D(b) - D(1)), 0): what the running batch has not paid of it anyway.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import KNEE
from steersman.estimators.observation import Floats, Ints

WATERMARK = 0.01
"""Share of the KV cache that an engine leaves free when it admits a sequence, so that the batch can
grow a little before it has to preempt again (vLLM's `watermark`, its classic default)."""


class EventKind(IntEnum):
    """What happened to a trajectory; at one time, events are reported in this order."""

    LOST = 0
    """Its replica died.  Its tokens are kept; it may be submitted again."""
    FINISHED = 1
    TURN_ENDED = 2
    """A turn that is not its last; it comes back by itself after the turn's wait."""
    PREEMPTED = 3
    """It lost its KV cache and waits at the head of its replica's queue."""


@dataclass(frozen=True)
class Events:
    """m events, ordered by time, then kind, then trajectory."""

    time_s: Floats
    kind: Ints
    """Values of `EventKind`."""
    trajectory: Ints
    replica: Ints
    """Where it was."""

    def __len__(self) -> int:
        return len(self.time_s)


@dataclass(frozen=True)
class ReplicaSpec:
    """One engine on one piece of hardware."""

    fixed_s: float
    """Seconds of an iteration that do not depend on the batch, and that `cost_factor` leaves alone;
    above 0, or, with a table, from 0 to its first entry."""
    sequence_s: float = 0.0
    """Seconds that one more running sequence adds; 0 with a table."""
    token_s: float = 0.0
    knee_s: float = 0.0
    """Seconds per unit of KV-cache usage above `KNEE`."""
    prefill_token_s: float = 0.0
    prefill_step_s: float = 0.0
    """Seconds more of an iteration that prefills anything, next to a batch of at most one; whoever
    is admitted at one moment shares it.  The host's work for a new request; a mixture of experts
    also reads all its experts for it."""
    request_s: float = 0.0
    """Seconds of the host's work for each sequence that joins the batch and prefills anything."""
    max_num_seqs: int = 256
    """Largest running batch."""
    kv_capacity_tokens: float = math.inf
    prefix_cache_tokens: float = math.inf
    """A prompt nobody uses is forgotten once so many other tokens were cached; 0: at once."""
    keeps_kv_between_turns: bool = False
    """Whether the prefix cache holds a trajectory's whole context while it waits for a tool."""
    speed: float = 1.0
    """Everything takes 1 / speed of its time: mixed hardware."""
    tokens_per_iteration: float = 1.0
    """Mean tokens that an iteration writes of each sequence, >= 1; above 1 with speculation."""
    cost_factor: float = 1.0
    """Of what depends on the batch: what verifying drafts adds."""
    batch_s: tuple[float, ...] = ()
    """(max_num_seqs,) seconds of an iteration at batch 1, 2, ... without context, cost factor 1 and
    speed 1, never decreasing; empty: `fixed_s` and `sequence_s` say it."""

    def __post_init__(self) -> None:
        table = np.array(self.batch_s, dtype=np.float64)
        least_s = table[0] if len(table) else self.fixed_s
        check(
            {
                "fixed_s": 0 <= self.fixed_s <= least_s < math.inf and least_s > 0,
                "batch_s": _finite(table) and bool((np.diff(table) >= 0).all()),
                "one batch_s for each of max_num_seqs": len(table) in (0, self.max_num_seqs),
                "sequence_s": 0 <= self.sequence_s < math.inf,
                "sequence_s beside batch_s": not (self.sequence_s and self.batch_s),
                "token_s": 0 <= self.token_s < math.inf,
                "knee_s": 0 <= self.knee_s < math.inf,
                "prefill_token_s": 0 <= self.prefill_token_s < math.inf,
                "prefill_step_s": 0 <= self.prefill_step_s < math.inf,
                "request_s": 0 <= self.request_s < math.inf,
                "max_num_seqs": self.max_num_seqs >= 1,
                "kv_capacity_tokens": self.kv_capacity_tokens > 0,
                "prefix_cache_tokens": self.prefix_cache_tokens >= 0,
                "speed": 0 < self.speed < math.inf,
                "tokens_per_iteration": 1 <= self.tokens_per_iteration < math.inf,
                "cost_factor": 0 < self.cost_factor < math.inf,
            },
            "replica",
        )

    @property
    def knee_tokens(self) -> float:
        """Tokens in the KV cache from which an iteration pays the knee."""
        return KNEE * self.kv_capacity_tokens

    @property
    def knee_token_s(self) -> float:
        """Seconds that each token above `knee_tokens` adds, at speed 1."""
        return self.knee_s / self.kv_capacity_tokens

    @property
    def admit_below_tokens(self) -> float:
        """A sequence joins a running batch only if the contexts then hold at most so many."""
        return (1.0 - WATERMARK) * self.kv_capacity_tokens


@dataclass(frozen=True)
class Trajectories:
    """n trajectories of m turns in all."""

    group: Ints
    """(n,) small numbers >= 0: trajectories of one group share their prompt."""
    prompt_tokens: Floats
    """(n,)"""
    encode_s: Floats
    """(n,) seconds that computing the prompt takes besides its tokens (images), at speed 1."""
    turns: Ints
    """(n,) turns of each, >= 1; the arrays below are one trajectory's turns after another's."""
    turn_tokens: Floats
    """(m,) tokens that the turn writes, above 0; in a first turn, `generated` of them before."""
    wait_s: Floats
    """(m,) seconds after the turn, outside of the batch (a tool runs); unused after the last."""
    extra_tokens: Floats
    """(m,) tokens that the wait appends to the context (the tool's answer); unused likewise."""
    generated: Floats = field(default_factory=lambda: np.zeros(1))
    """(n,), or (1,) of all: tokens of the first turn that are written already, fewer than it has.
    No replica has them cached: the first admission prefills them, as after a migration.  Of what is
    beyond its first turn, give the turns that remain, the tokens of earlier ones with the first."""

    def __post_init__(self) -> None:
        n, m = len(self.group), int(np.sum(self.turns))
        per_trajectory = (self.prompt_tokens, self.encode_s, self.turns)
        per_turn = (self.turn_tokens, self.wait_s, self.extra_tokens)
        check(
            {
                "turns": bool((self.turns >= 1).all()),
                "(n,) arrays": all(a.shape == (n,) for a in per_trajectory),
                "(m,) arrays": all(a.shape == (m,) for a in per_turn),
                "group": bool((self.group >= 0).all()),
                "prompt_tokens": _finite(self.prompt_tokens),
                "encode_s": _finite(self.encode_s),
                "turn_tokens": _finite(self.turn_tokens) and bool((self.turn_tokens > 0).all()),
                "wait_s": _finite(self.wait_s),
                "extra_tokens": _finite(self.extra_tokens),
                "generated": _finite(self.generated) and self.generated.shape in ((n,), (1,)),
            },
            "trajectories",
        )
        first_turn = self.turn_tokens[np.cumsum(self.turns) - self.turns]
        check({"generated": bool((self.generated < first_turn).all())}, "trajectories")

    def __len__(self) -> int:
        return len(self.group)

    @classmethod
    def of_one_turn(
        cls,
        tokens: ArrayLike,
        group: ArrayLike | None = None,
        prompt_tokens: ArrayLike = 0.0,
        encode_s: ArrayLike = 0.0,
        generated: ArrayLike = 0.0,
    ) -> Self:
        """(n,) `tokens` to write each; without `group`, every trajectory is one of its own."""
        written = np.asarray(tokens, dtype=np.float64)
        n, nothing = len(written), np.zeros_like(written)
        return cls(
            group=np.arange(n) if group is None else np.asarray(group, dtype=np.int64),
            prompt_tokens=np.broadcast_to(np.asarray(prompt_tokens, dtype=np.float64), n),
            encode_s=np.broadcast_to(np.asarray(encode_s, dtype=np.float64), n),
            turns=np.ones(n, dtype=np.int64),
            turn_tokens=written,
            wait_s=nothing,
            extra_tokens=nothing,
            generated=np.broadcast_to(np.asarray(generated, dtype=np.float64), n),
        )


@dataclass(frozen=True)
class ReplicaState:
    """r replicas, dead ones included; the columns are those of `ReplicaTable`."""

    alive: Ints
    running: Ints
    waiting: Ints
    """In the engine's own queue."""
    away: Ints
    """On their way to it, or waiting for a tool between two turns."""
    kv_tokens: Floats
    """Tokens that the running contexts hold, at most the capacity: a sequence that alone exceeds it
    fills it.  What is kept for later (prompts, contexts between turns) can be evicted and is not
    counted; a prompt that several run with is counted once for each."""
    iterations: Floats
    """Since the replica joined, as the next ones; iterations that only prefill are not counted."""
    busy_s: Floats
    """With the prefills."""
    sequences_run: Floats
    prefill_tokens: Floats
    preemptions: Ints


def check(conditions: Mapping[str, bool], what: str) -> None:
    """Raises `InvalidInputError` with the names of the conditions that do not hold."""
    wrong = [name for name, holds in conditions.items() if not holds]
    if wrong:
        raise InvalidInputError(f"simulated {what}: out of range: {', '.join(wrong)}")


def _finite(values: Floats) -> bool:
    """All finite and not negative."""
    return bool((np.isfinite(values) & (values >= 0)).all())
