"""Draft from the moment a replica's batch has stayed small until the next step; learn how much.

TLT (arXiv 2511.16665; mit-han-lab/fastrl).  A replica begins to draft when its batch was at most 32
in 10 checks in a row, and keeps on until the next step, even if the batch rises again.  How many
tokens is left to an epsilon-greedy bandit: with probability .1 any length, else the one whose
reward, tokens accepted * batch / time of an iteration, has the highest median over its last 300
measurements in the bucket of this batch (from 1, 2, 5, 21 sequences); one never tried there comes
first.

Different here:

- A check is a tick; theirs is an iteration of the engine.
- Their arms are (steps, top-k, tokens) of a draft tree, each bucket with those of one tree size.
  Engines here take one length, and every bucket learns about all lengths.
- The reward is measured between two observations from the engine's counters.  With one token of
  the model itself per verification it is (sequences_run + accepted) / busy_s: tokens per second.
  Prefills count into the time.  Within a wide bucket it also grows with the batch, which blurs the
  comparison; they keep separate figures for each batch below 32, which a tick does not fill.
- One bandit for the fleet; theirs is one per engine.  Replicas on unequal hardware blur it.

Correctness class: exact, provided the engine's verification is lossless.
"""

from dataclasses import dataclass, field
from statistics import median
from typing import Any, ClassVar, NamedTuple

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import SpeculationPolicy
from steersman.policies.decision import DraftDecision
from steersman.policies.speculation._drafts import LEAVE, changes, effective_batch

NAME = "latch"
OFF = 0


class _Counters(NamedTuple):
    """What an engine had done at an observation."""

    draft_tokens: int
    iterations: int
    busy_s: float
    sequences: float
    accepted: int


@dataclass
class _Replica:
    """What is remembered of one replica."""

    step: int
    small: int = 0
    """Checks in a row at which its batch was small."""
    length: int = OFF
    """Draft tokens chosen; other than `OFF`: latched."""
    last: _Counters | None = None


@dataclass
class Latch:
    """The defaults are the project's, but for the lengths."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    batch: int = 32
    """Largest batch that counts as small."""
    checks: int = 10
    """Ticks in a row at which it must be small."""
    lengths: tuple[int, ...] = (2, 4, 8)
    """Draft tokens to choose from; what an engine cannot do counts as the most that it can.  The
    project's trees have 8 steps and 8 to 32 tokens."""
    epsilon: float = 0.1
    """Probability of trying any length."""
    window: int = 300
    """Measurements remembered of each length and bucket."""
    buckets: tuple[int, ...] = (1, 2, 5, 21)
    """Smallest batch of each bucket, ascending."""

    _replicas: dict[str, _Replica] = field(default_factory=dict, init=False)
    _rewards: dict[tuple[int, int], list[float]] = field(default_factory=dict, init=False)
    """By bucket and length, the latest last."""

    def __post_init__(self) -> None:
        if not (self.lengths and min(self.lengths) >= 1 and self.window >= 1 and self.checks >= 1):
            raise ValueError("lengths, window and checks must be 1 or more")
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError("buckets must be ascending")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[DraftDecision]:
        """Measure, latch, choose."""
        r, batch = observation.replicas, effective_batch(observation)
        wanted = np.full(len(r), LEAVE)
        for row in np.flatnonzero(r.alive & (r.max_draft_tokens > 0)).tolist():
            memory = self._replicas.setdefault(r.names[row], _Replica(observation.trainer.step))
            if memory.step != observation.trainer.step:
                memory.step, memory.small, memory.length = observation.trainer.step, 0, OFF
            measured = self._measure(observation, row, memory)
            if batch[row] > 0:  # an idle replica tells nothing
                memory.small = memory.small + 1 if batch[row] <= self.batch else 0
                starts = memory.length == OFF and memory.small >= self.checks
                if starts or measured:
                    most = int(r.max_draft_tokens[row])
                    memory.length = self._choose(int(batch[row]), most, rng)
                wanted[row] = memory.length
        return changes(observation, wanted, NAME, [f"batch {b}" for b in batch.tolist()])

    def _measure(self, observation: Observation, row: int, memory: _Replica) -> bool:
        """Learn from the time since the last observation if its length was in force throughout."""
        r = observation.replicas
        now = _Counters(
            int(r.draft_tokens[row]),
            int(r.iterations[row]),
            float(r.busy_s[row]),
            float(r.sequences_run[row]),
            int(r.accepted_at[row].sum()),
        )
        last, memory.last = memory.last, now
        if last is None or memory.length == OFF:
            return False
        if not memory.length == now.draft_tokens == last.draft_tokens:
            return False
        iterations, busy_s = now.iterations - last.iterations, now.busy_s - last.busy_s
        sequences, accepted = now.sequences - last.sequences, now.accepted - last.accepted
        if not (iterations > 0 and busy_s > 0 and sequences > 0 and accepted >= 0):
            return False  # paused, stale, or restarted
        key = self._bucket(sequences / iterations), memory.length
        rewards = self._rewards.setdefault(key, [])
        rewards.append((sequences + accepted) / busy_s)
        del rewards[: -self.window]
        return True

    def _bucket(self, batch: float) -> int:
        return max(int(np.searchsorted(self.buckets, batch, side="right")) - 1, 0)

    def _choose(self, batch: int, most: int, rng: np.random.Generator) -> int:
        lengths = sorted({min(length, most) for length in self.lengths})
        if rng.random() < self.epsilon:
            return lengths[int(rng.integers(len(lengths)))]
        rewards = [self._rewards.get((self._bucket(batch), length)) for length in lengths]
        scores = [median(r) if r else float("inf") for r in rewards]
        return lengths[scores.index(max(scores))]

    def state_dict(self) -> dict[str, Any]:
        """The latches and the measurements."""
        return {
            "replicas": {
                name: [m.step, m.small, m.length, list(m.last) if m.last else None]
                for name, m in self._replicas.items()
            },
            "rewards": [[*key, rewards] for key, rewards in self._rewards.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._replicas = {
            name: _Replica(step, small, length, _Counters(*last) if last else None)
            for name, (step, small, length, last) in state["replicas"].items()
        }
        self._rewards = {(b, length): list(rewards) for b, length, rewards in state["rewards"]}


PLUGIN: type[SpeculationPolicy] = Latch
