"""Engines that verify drafts, one iteration after another, for policies that say who drafts.

A step's trajectories are placed at its beginning, fewest first, and run to the end.  An iteration
of b sequences takes

    M + c b + v0 [anything was drafted] + v1 (tokens drafted)

seconds, with noise.  A sequence that is told K tokens finds a draft with probability `found`, of K
tokens; position i is accepted with probability `acceptance[i]` if all before it were.  Policies are
asked every `tick_s` with the real estimators' forecasts; remaining lengths are known, known up to a
factor per trajectory, or estimated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numba
import numpy as np
from support.observations import group_table, known, observation, replica_table, trajectory_table

from steersman.estimators.acceptance import DiscountedAcceptance
from steersman.estimators.forecast import Forecast, LengthForecast
from steersman.estimators.length import SurvivalLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    AS_REPLICA,
    NO_ROW,
    EndedTable,
    Observation,
    TrainerSignal,
)
from steersman.estimators.throughput import IterationTime
from steersman.policies.decision import Decision, DraftDecision

DEEPEST = 8
GROUP = 8
ESTIMATED = -1.0


@dataclass
class Engines:
    """What they are like; M is 10 ms."""

    replicas: int = 4
    fixed_s: float = 0.01
    sequence_s: float = 0.0002
    verify_s: float = 0.0
    verify_token_s: float | None = None
    """None: as a sequence."""
    acceptance: Sequence[float] = (0.8,) * DEEPEST
    found: float = 1.0
    noise: float = 0.05
    single: bool = True
    """Whether single trajectories can be told."""


@dataclass
class Ran:
    """What came of it."""

    step_s: list[float] = field(default_factory=list)
    drafting: list[np.ndarray] = field(default_factory=list)
    """By tick, (r,) trajectories that drafted."""
    step_of: list[int] = field(default_factory=list)
    """Step of each tick."""
    told: list[tuple[int, Any]] = field(default_factory=list)
    """Tick and decision."""

    def probes(self, step: int) -> int:
        """Times that drafting began in a step."""
        on = [bool(d.any()) for d, s in zip(self.drafting, self.step_of, strict=True) if s == step]
        return sum(now and not before for before, now in zip([False, *on], on, strict=False))

    def ticks_on(self, step: int) -> int:
        """Ticks of a step in which anything drafted."""
        return sum(
            bool(d.any()) for d, s in zip(self.drafting, self.step_of, strict=True) if s == step
        )


class DraftWorld:
    """A run of steps; `change` may alter the engines at the beginning of each."""

    def __init__(
        self,
        engines: Engines,
        lengths: Sequence[np.ndarray],
        seed: int = 0,
        error: float = 0.0,
        tick_s: float = 0.25,
        slots: int = 256,
        change: Callable[[int, Engines], None] = lambda step, engines: None,
        at_tick: Callable[[int, Engines], None] = lambda tick, engines: None,
    ) -> None:
        """`error`: log deviation of forecast lengths, or `ESTIMATED`."""
        self.engines, self.lengths, self.error, self.tick_s = engines, lengths, error, tick_s
        self.slots, self.change, self.at_tick = slots, change, at_tick
        self.rng, self.guess = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
        r = engines.replicas
        self.throughput, self.drafts = IterationTime(), DiscountedAcceptance(positions=DEEPEST)
        self.length = SurvivalLength()
        self.counters = np.zeros((3, r))
        self.asked, self.drafted, self.accepted = np.zeros((3, r, DEEPEST), dtype=np.int64)
        self.default = np.zeros(r, dtype=np.int64)
        self.now_s, self.ahead_s = 0.0, np.zeros(r)
        self.tick = self.version = 0
        self.ended: list[int] = []

    def run(self, policy: Any) -> Ran:
        """All steps under a policy."""
        ran = Ran()
        for step, lengths in enumerate(self.lengths):
            self.change(step, self.engines)
            self._begin(lengths)
            start_s, end_s = self.now_s, self.now_s
            while self.at.max() >= 0:
                self._decide(policy, step, ran)
                end_s = self._advance()
            ran.step_s.append(end_s - start_s)
            self._decide(policy, step, ran)
            self.now_s += 1.0
            self.ahead_s[:] = 0.0
            self.version += 1
        return ran

    def _begin(self, lengths: np.ndarray) -> None:
        n = len(lengths)
        self.left, self.written = lengths.astype(np.int64).copy(), np.zeros(n, dtype=np.int64)
        self.at = np.arange(n) % self.engines.replicas
        self.own = np.full(n, AS_REPLICA)
        deviation = max(self.error, 0.0)
        self.factor = np.exp(self.guess.normal(0.0, deviation, n) - deviation**2 / 2)

    def observe(self, step: int) -> Observation:
        """What a controller would see now."""
        n, r = len(self.left), self.engines.replicas
        self.tick += 1
        running = np.bincount(self.at[self.at >= 0], minlength=r)
        iterations, busy_s, sequences = self.counters
        replicas = replica_table(
            r,
            running=np.minimum(running, self.slots),
            waiting=np.maximum(running - self.slots, 0),
            max_num_seqs=np.full(r, self.slots),
            iterations=iterations.astype(np.int64),
            busy_s=busy_s.copy(),
            sequences_run=sequences.copy(),
            asked_at=self.asked.copy(),
            drafted_at=self.drafted.copy(),
            accepted_at=self.accepted.copy(),
            draft_tokens=self.default.copy(),
            max_draft_tokens=np.full(r, DEEPEST),
            weight_version=np.full(r, self.version),
        )
        gone = np.array(self.ended, dtype=np.int64)
        self.ended.clear()
        group = np.arange(n) // GROUP
        table = trajectory_table(
            np.where(self.at >= 0, int(Phase.RUNNING), int(Phase.ENDED)),
            GROUP,
            trajectory_id=np.arange(n) + 1000 * step,
            replica_row=np.where(self.at >= 0, self.at, NO_ROW),
            generated_tokens=self.written.copy(),
            max_new_tokens=np.full(n, 100_000),
            placed_s=np.full(n, self.now_s),
            draft_tokens=self.own.copy() if self.engines.single else np.full(n, -2),
        )
        groups = group_table(
            n // GROUP, size=np.full(n // GROUP, GROUP), step=np.full(n // GROUP, step)
        )
        same = np.ones_like(gone)
        ended = EndedTable(
            gone + 1000 * step, group[gone], group[gone] + 7000, 100 * same, self.written[gone],
            np.zeros(len(gone), dtype=np.bool_), same, self.version * same,
        )  # fmt: skip
        trainer = TrainerSignal(step=step, weight_version=self.version)
        return observation(
            table, replicas, self.now_s, groups=groups, trainer=trainer, ended=ended, tick=self.tick
        )

    def forecast(self, seen: Observation) -> Forecast:
        """What the estimators say."""
        self.throughput.observe(seen)
        self.drafts.observe(seen)
        if self.error == ESTIMATED:
            self.length.observe(seen)
        forecast = known(seen, self.length, self.throughput)
        forecast = replace(forecast, acceptance=self.drafts.forecast(seen))
        if self.error == ESTIMATED:
            return forecast
        mean = np.where(self.at >= 0, np.maximum(self.left * self.factor, 1.0), 0.0)
        quantiles = mean[:, None] * np.array((0.7, 1.0, 1.5))
        length = LengthForecast(
            quantiles, mean, np.ones_like(quantiles), np.zeros(len(seen.groups))
        )
        return replace(forecast, length=length)

    def _decide(self, policy: Any, step: int, ran: Ran) -> None:
        self.at_tick(self.tick, self.engines)
        seen = self.observe(step)
        rng = np.random.default_rng(self.tick)
        for d in policy.decide(seen, self.forecast(seen), rng):
            ran.told.append((self.tick, d))
            if isinstance(d, DraftDecision):
                self.default[seen.replicas.names.index(d.replica)] = d.draft_tokens
            elif isinstance(d, Decision):
                assert self.engines.single
                self.own[d.row] = d.draft_tokens
        ran.step_of.append(step)
        some = (self.at >= 0) & (self._told() > 0)
        ran.drafting.append(np.bincount(self.at[some], minlength=self.engines.replicas))

    def _told(self) -> np.ndarray:
        """(n,) tokens drafted for each."""
        return np.where(self.own >= 0, self.own, self.default[self.at])

    def _advance(self) -> float:
        """To the next tick; when the last one ended."""
        e, until_s, last_s = self.engines, self.now_s + self.tick_s, self.now_s
        each_s = e.sequence_s if e.verify_token_s is None else e.verify_token_s
        costs = np.array((e.fixed_s, e.sequence_s, e.verify_s, each_s, e.noise))
        told, before = self._told(), self.at.copy()
        for r in range(e.replicas):
            clock_s, ended_s = _run(
                self.rng, r, self.now_s + self.ahead_s[r], until_s, self.slots, costs, e.found,
                np.asarray(e.acceptance, dtype=np.float64), told, self.at, self.left, self.written,
                self.counters, self.asked[r], self.drafted[r], self.accepted[r],
            )  # fmt: skip
            self.ahead_s[r] = max(clock_s - until_s, 0.0)
            last_s = max(last_s, ended_s)
        self.ended += np.flatnonzero((before >= 0) & (self.at < 0)).tolist()
        self.now_s = until_s
        return last_s


@numba.njit(cache=True)
def _run(  # type: ignore[no-untyped-def]
    rng, r, clock_s, until_s, slots, costs, found, acceptance, told, at, left, written, counters,
    asked, drafted, accepted,
):  # fmt: skip
    """One replica's iterations until then; its clock, and when somebody ended last."""
    fixed_s, sequence_s, verify_s, each_s, noise = costs
    ended_s = 0.0
    while clock_s < until_s:
        batch, verified = 0, 0
        for i in range(len(at)):
            if at[i] != r or batch == slots:
                continue
            batch += 1
            wrote = 1
            for k in range(told[i]):
                asked[k] += 1
            if told[i] > 0 and rng.random() < found:
                verified += told[i]
                going = True
                for k in range(told[i]):
                    drafted[k] += 1
                    going = going and rng.random() < acceptance[k]
                    accepted[k] += going
                    wrote += going
            wrote = min(wrote, left[i])
            left[i] -= wrote
            written[i] += wrote
        if batch == 0:
            return until_s, ended_s
        seconds = fixed_s + sequence_s * batch + each_s * verified
        if verified:
            seconds += verify_s
        seconds *= 1.0 + noise * rng.standard_normal()
        clock_s += seconds
        counters[0, r] += 1.0
        counters[1, r] += seconds
        counters[2, r] += batch
        for i in range(len(at)):
            if at[i] == r and left[i] == 0:
                at[i] = -1
                ended_s = clock_s
    return clock_s, ended_s


def tailed(seed: int, steps: int, n: int = 64, median: float = 400.0, sigma: float = 0.8) -> list:
    """Log-normal lengths, at most eight times their median."""
    rng = np.random.default_rng((seed, 2))
    return [
        np.minimum(np.exp(rng.normal(np.log(median), sigma, n)), 8 * median).astype(int) + 1
        for _ in range(steps)
    ]
