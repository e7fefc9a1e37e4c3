"""Draft once the cost model says that it pays, and from then on until the next weights.

EfficientRollout (arXiv 2606.18967; furiosa-ai/EfficientRollout).  With g draft tokens,

    speed-up = L / (g r + v),   L: tokens per verification,
                                r: a drafted token's time over an iteration's,
                                v: a verification's time over an iteration's,

a replica begins to draft when speed-up >= 1 + margin.  Two guards: its batch must first have
exceeded half of `max_num_seqs`, since a batch that still fills looks like a tail, and what is on
stays on until the weights change (one-way latch: within a step of a synchronous trainer batches
only shrink).  g climbs a ladder, fleet-wide and only between weights: one rung up after the fleet's
accepted/drafted was at least `raise_at` in `persistence` versions in a row.  The code also goes
down at `lower_at` (the paper's algorithm 1, its comments say).

Different here:

- L comes from the acceptance forecast of the moment; theirs is last rollout's mean, and before any
  it is set by hand.
- Their roofline is T(q) = max(memory, q B compute) + overhead B for q tokens of each of B
  sequences, calibrated on the hardware beforehand.  With `compute_token_s` it is that, memory and
  overhead from the throughput forecast.  Without, the forecast's line stands in for it:
  T(q) = M + c q B, which charges for every verified token and so switches on later.
- A trainer that keeps replicas full, or a fleet whose batches never reach half of `max_num_seqs`,
  never sees it switch on.

Correctness class: exact, provided the engine's verification is lossless.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.estimators.speculation import NO_TIME, expected_tokens
from steersman.policies.contract import SpeculationPolicy
from steersman.policies.decision import DraftDecision
from steersman.policies.speculation._drafts import acceptance_to, changes, effective_batch

NAME = "roofline"


@dataclass
class _Switch:
    """Of one replica."""

    version: int
    """Its weights; others reset the switch."""
    was_full: bool = False
    on: bool = False


@dataclass
class Roofline:
    """The defaults are those of the project's scripts."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    margin: float = 0.05
    """Speed-up above 1 that is asked for; it covers what the model leaves out (2-4 %, they say)."""
    full_share: float = 0.5
    """Share of `max_num_seqs` that the batch must have exceeded since the last weights."""
    ladder: tuple[int, ...] = (5, 7, 9, 11)
    """Draft tokens, ascending; the first rung is where a run starts."""
    raise_at: float = 0.94
    """Accepted share of the drafted tokens from which the ladder is climbed."""
    lower_at: float = 0.85
    """Share at or below which it is descended; 0: never."""
    persistence: int = 2
    """Weight versions in a row that must agree."""
    draft_token_s: float = 0.0
    """Seconds per drafted token; 0 for drafts that are looked up (n-grams, suffixes).  No engine
    reports it.  Their drafter, the model itself with 4-bit weights, is far from free."""
    compute_token_s: float | None = None
    """Seconds of arithmetic per verified token of a sequence; none: not known."""

    _switches: dict[str, _Switch] = field(default_factory=dict, init=False)
    _version: int = field(default=-1, init=False)
    """The trainer's weights at the last observation."""
    _counted: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """Drafted and accepted tokens of each replica when these weights came."""
    _rung: int = field(default=0, init=False)
    _highs: int = field(default=0, init=False)
    """Versions in a row at or above `raise_at`."""
    _lows: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.ladder, self.ladder[1:], strict=False))
        if not (self.ladder and self.ladder[0] >= 1 and rising):
            raise ValueError("ladder must hold ascending numbers of draft tokens, 1 or more")
        if not (self.lower_at < self.raise_at and self.persistence >= 1):
            raise ValueError("lower_at must be below raise_at, and persistence at least 1")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[DraftDecision]:
        """Switch on where it pays; off where new weights have come."""
        self._climb(observation)
        tokens, batch = self.ladder[self._rung], effective_batch(observation)
        speed = self._speed_up(observation, forecast, batch, tokens)
        on = [
            self._is_on(observation, row, int(batch[row]), speed[row]) for row in range(len(batch))
        ]
        wanted = np.where(on, tokens, 0)
        reasons = [
            f"batch {b}, predicted speed-up {s:.2f}"
            for b, s in zip(batch.tolist(), speed.tolist(), strict=True)
        ]
        return changes(observation, wanted, NAME, reasons)

    def _is_on(self, observation: Observation, row: int, batch: int, speed: float) -> bool:
        r = observation.replicas
        version = int(r.weight_version[row])
        switch = self._switches.setdefault(r.names[row], _Switch(version))
        if switch.version != version:
            switch = self._switches[r.names[row]] = _Switch(version)
        if not switch.was_full:
            switch.was_full = batch > self.full_share * int(r.max_num_seqs[row])
        elif batch > 0 and speed >= 1.0 + self.margin:
            switch.on = True
        return switch.on

    def _speed_up(
        self, observation: Observation, forecast: Forecast, batch: Ints, tokens: int
    ) -> Floats:
        """(r,) speed with `tokens` draft tokens relative to none."""
        f = forecast.throughput
        memory_s = f.fixed_s + f.token_s * observation.resident_tokens()

        def takes_s(verified: int) -> Floats:
            if self.compute_token_s is None:
                return np.asarray(memory_s + f.sequence_s * verified * batch)
            compute_s = self.compute_token_s * verified * batch
            return np.asarray(np.maximum(memory_s, compute_s) + f.sequence_s * batch)

        plain_s = np.maximum(takes_s(1), NO_TIME)
        spent = (
            self.draft_token_s / plain_s * tokens
            + np.maximum(takes_s(tokens + 1), NO_TIME) / plain_s
        )
        return np.asarray(expected_tokens(acceptance_to(forecast, tokens))[:, tokens] / spent)

    def _climb(self, observation: Observation) -> None:
        """On new weights, compare what was accepted on the last ones with the two marks."""
        version, r = observation.trainer.weight_version, observation.replicas
        if version == self._version:
            return
        self._version = version
        drafted, accepted = r.drafted_at.sum(axis=1).tolist(), r.accepted_at.sum(axis=1).tolist()
        now = dict(zip(r.names, zip(drafted, accepted, strict=True), strict=True))
        # a counter below its mark belongs to an engine that was restarted
        new = [
            (d - self._counted[name][0], a - self._counted[name][1])
            for name, (d, a) in now.items()
            if name in self._counted and d >= self._counted[name][0]
        ]
        self._counted = now
        total = sum(d for d, _ in new)
        if total <= 0:
            return
        share = sum(a for _, a in new) / total
        self._highs = self._highs + 1 if share >= self.raise_at else 0
        self._lows = self._lows + 1 if share <= self.lower_at else 0
        if self._highs >= self.persistence:
            self._rung, self._highs = min(self._rung + 1, len(self.ladder) - 1), 0
        if self._lows >= self.persistence:
            self._rung, self._lows = max(self._rung - 1, 0), 0

    def state_dict(self) -> dict[str, Any]:
        """The switches and the ladder."""
        return {
            "switches": {name: [s.version, s.was_full, s.on] for name, s in self._switches.items()},
            "version": self._version,
            "counted": {name: list(pair) for name, pair in self._counted.items()},
            "ladder": [self._rung, self._highs, self._lows],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._switches = {name: _Switch(*values) for name, values in state["switches"].items()}
        self._version = int(state["version"])
        self._counted = {name: (int(d), int(a)) for name, (d, a) in state["counted"].items()}
        self._rung, self._highs, self._lows = (int(x) for x in state["ladder"])


PLUGIN: type[SpeculationPolicy] = Roofline
