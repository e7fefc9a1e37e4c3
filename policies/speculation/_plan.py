"""For whom, and how much, it pays to draft, by the forecasts.

Where a trainer waits for the last trajectory (barrier) and nothing waits for a place, what counts
is when each replica ends (`draft_ends`).  The latest end that is left when every replica drafts as
suits it best is the *water level*: no replica needs to end earlier, so that those that stay below
it anyway draft nothing, and of those above each takes the m and K of fewest drafted tokens that
bring it below.  Only such m and K count with which the replica writes no fewer tokens per second at
its present batch: what verifying costs is certain, who is the longest is not.

Where tokens per second count (a stream, or a queue that any free replica takes from), or where a
replica's sequences all draft alike, the choice is by the present batch: all or none, K for the
highest speed.  While all draft alike, following the speed of the moment is best for the end, too:
everything advances in step.

What is done already is left alone unless another choice is better by `margin`; it is given up as
soon as it is worse than drafting nothing.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from steersman.estimators.draft_ends import Batches, Costs, end_as_s
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import (
    ONLY_AS_REPLICA,
    Bools,
    Floats,
    Ints,
    Objective,
    Observation,
)
from steersman.estimators.speculation import Verifying, expected_tokens, speed_up
from steersman.policies.speculation._drafts import LEAVE, effective_batch
from steersman.policies.speculation._ends_table import EndsTable

LADDER = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of draft tokens tried: finer steps change the speed by less than a percent."""
NEAR = 0.01
"""Relative difference of ends that is none: fewer drafts are better then."""


@dataclass(frozen=True)
class Plan:
    """By replica, (r,)."""

    drafted: Ints
    """K from now on; `LEAVE`: as it is."""
    sequences: Ints
    """How many draft it, the longest first; all where it is the whole batch."""
    pays: Bools
    """Whether drafting shortens what is waited for, by the margin."""
    gains: Bools
    """Whether what is drafted now is no loss; False where nothing is."""
    best: Ints
    """K that suits it best, however it drafts now; 0: none pays."""
    gain_s: Floats
    """How much sooner it would end."""
    tokens: Floats
    """Per verification of those that draft."""
    takes: Floats
    """Times an iteration without drafts that one with them takes."""


@dataclass(frozen=True)
class Outlook:
    """What runs, what it costs, and what is drafted at present."""

    observation: Observation
    batches: Batches
    costs: Costs
    able: Bools
    """(r,) can draft, and its iterations are known."""
    batch: Floats
    """(r,) sequences at a time."""
    drafting: Ints
    """(n,) tokens drafted for each trajectory of `batches`."""
    margin: float

    @classmethod
    def of(cls, observation: Observation, forecast: Forecast, margin: float) -> "Outlook":
        """As observed and forecast."""
        r, f = observation.replicas, forecast.throughput
        columns = (f.fixed_s, f.per_sequence_s, f.verify_s, f.verify_token_s)
        known = np.isfinite(columns).all(axis=0) & (f.samples > 0) & (f.fixed_s > 0)
        fixed_s, sequence_s, verify_s, verify_token_s = np.where(known, columns, 1.0)
        slots = np.maximum(r.max_num_seqs, 1).astype(np.float64)
        costs = Costs(fixed_s, sequence_s, verify_s, verify_token_s, slots)
        left = np.maximum(np.nan_to_num(forecast.length.mean_remaining_tokens), 0.0)
        at = observation.destination_row
        here = np.flatnonzero((at >= 0) & (left > 0))
        batches = Batches.of(at[here], left[here], len(r))
        batches = Batches(here[batches.order], batches.replica, batches.left, batches.first)
        return cls(
            observation,
            batches,
            costs,
            r.alive & known & (r.max_draft_tokens > 0) & (batches.count > 0),
            np.maximum(effective_batch(observation), 1).astype(np.float64),
            np.minimum(observation.drafted[batches.order], r.max_draft_tokens[batches.replica]),
            margin,
        )

    def without(self, barred: Bools) -> "Outlook":
        """With replicas that draft nothing."""
        return replace(self, able=self.able & ~barred) if barred.any() else self

    @cached_property
    def iteration_s(self) -> Floats:
        """(r,) seconds of an iteration without drafts."""
        return self.costs.fixed_s + self.costs.sequence_s * self.batch

    @cached_property
    def single(self) -> bool:
        """Whether single trajectories can be told."""
        return not (self.observation.trajectories.draft_tokens == ONLY_AS_REPLICA).any()

    @cached_property
    def flowing(self) -> bool:
        """Whether tokens per second count, not the last end."""
        stream = self.observation.trainer.objective is Objective.STREAM
        return stream or len(self.observation.queued) > 0

    @cached_property
    def plain_s(self) -> Floats:
        """(r,) end of each replica without drafts."""
        b = self.batches
        return end_as_s(b, self.costs, np.ones_like(b.left), np.zeros_like(b.order))

    @cached_property
    def choices(self) -> Ints:
        """(q,) numbers of draft tokens."""
        most = int(self.observation.replicas.max_draft_tokens.max(initial=0))
        return np.array(sorted({k for k in LADDER if k < most} | {0, most}))

    @cached_property
    def possible(self) -> Bools:
        """(r, q)"""
        most = self.observation.replicas.max_draft_tokens
        allowed: Bools = self.choices <= most[:, None]
        return np.asarray(allowed & (self.able[:, None] | (self.choices == 0)))

    def drafting_alone(self, row: int, tokens: int) -> bool:
        """Whether one trajectory of a replica drafts so many, and no other anything."""
        here = self.drafting[self.batches.first[row] : self.batches.first[row + 1]]
        return int(here.sum()) == tokens and int((here > 0).sum()) == 1

    def alone(self, acceptance: Floats) -> tuple[Bools, Ints]:
        """(r,) whether drafting pays for a sequence that runs by itself, and its best K."""
        c, one = self.costs, np.ones(len(self.able))
        verifying = Verifying(c.verify_s, c.verify_token_s)
        speed = speed_up(acceptance, one, c.fixed_s, c.sequence_s, 0.0, verifying)
        speed = np.where(self.possible, speed[:, self.choices], -np.inf)
        return speed.max(axis=1) > 1.0 + self.margin, self.choices[np.argmax(speed, axis=1)]

    def plan(self, acceptance: Floats) -> Plan:
        """With (r, k) acceptance, k the deepest draft of any replica."""
        tokens = expected_tokens(acceptance)
        each = tokens[self.batches.replica, self.drafting]
        if self.flowing or not self.single:
            return self._by_speed(acceptance, tokens, each)
        return self._by_ends(tokens, each)

    def _by_ends(self, tokens: Floats, each: Floats) -> Plan:
        # nobody gets below what the last one can be brought to: who is there anyway is not asked
        last = np.arange(len(self.able)) == np.argmax(self.plain_s)
        floor_s = self._table(tokens, last).best_s.max(initial=0.0)
        table = self._table(tokens, self.plain_s > floor_s)
        best_s = self.plain_s.copy()
        best_s[table.replicas] = np.minimum(table.best_s, best_s[table.replicas])
        pays = self.able & (best_s < (1.0 - self.margin) * self.plain_s)
        level_s = float(np.where(pays, best_s, self.plain_s).max(initial=0.0))
        pays &= self.plain_s > (1.0 + NEAR) * level_s
        # of what ends soon enough, the fewest drafted tokens
        limit_s = (1.0 + NEAR) * np.maximum(best_s, level_s)
        drafted, sequences = np.zeros((2, len(best_s)), dtype=np.int64)
        m, choice, then_s = table.cheapest(limit_s[table.replicas])
        drafted[table.replicas], sequences[table.replicas] = self.choices[choice], m
        end_s = self.plain_s.copy()
        end_s[table.replicas] = then_s
        now_s = end_as_s(self.batches, self.costs, each, self.drafting)
        change = pays & (now_s > (1.0 + self.margin) * np.maximum(end_s, level_s))
        worse = (now_s > self.plain_s) | (self._speed_now(each) < 1.0 - self.margin)
        return self._made(tokens, pays, change, worse, drafted, sequences, self.plain_s - end_s)

    def _table(self, tokens: Floats, asked: Bools) -> EndsTable:
        chosen = tokens[:, self.choices]
        return EndsTable.of(
            self.batches, self.costs, chosen, self.choices, self.possible, asked, self.batch
        )

    def _speed_now(self, each: Floats) -> Floats:
        """(r,) tokens per second with what is drafted now, over those without."""
        c, b = self.costs, self.batches
        count = np.maximum(b.count, 1)
        written, verified = b.total(each) / count, b.total(self.drafting) / count * self.batch
        more_s = c.verify_s * (verified > 0) + c.verify_token_s * verified
        return np.asarray(written * self.iteration_s / (self.iteration_s + more_s))

    def _by_speed(self, acceptance: Floats, tokens: Floats, each: Floats) -> Plan:
        c, b = self.costs, self.batches
        verifying = Verifying(c.verify_s, c.verify_token_s)
        speed = speed_up(acceptance, self.batch, c.fixed_s, c.sequence_s, 0.0, verifying)
        speed = np.where(self.possible, speed[:, self.choices], -np.inf)
        best = speed >= (1.0 - 1e-9) * speed.max(axis=1, keepdims=True)
        choice = np.argmax(best, axis=1)
        drafted, fastest = self.choices[choice], speed[np.arange(len(choice)), choice]
        pays = self.able & (fastest > 1.0 + self.margin)
        gain_s = self.plain_s * (1.0 - 1.0 / np.maximum(fastest, 1.0))
        if not self.flowing:
            end_s = np.where(pays, self.plain_s - gain_s, self.plain_s)
            pays &= self.plain_s > (1.0 + NEAR) * end_s.max(initial=0.0)
        now = self._speed_now(each)
        change = pays & (fastest > (1.0 + self.margin) * now)
        return self._made(tokens, pays, change, now < 1.0, drafted, b.count, gain_s)

    def _made(
        self,
        tokens: Floats,
        pays: Bools,
        change: Bools,
        worse: Bools,
        drafted: Ints,
        sequences: Ints,
        gain_s: Floats,
    ) -> Plan:
        b, best = self.batches, np.where(pays, drafted, 0)
        drafts = b.total(self.drafting > 0) > 0
        wanted = np.where(change, drafted, LEAVE)
        wanted = np.where(~change & (worse | ~self.able), 0, wanted)
        c = self.costs
        m = np.minimum(sequences, self.batch)
        more_s = c.verify_s * (best > 0) + c.verify_token_s * best * m
        return Plan(
            drafted=wanted,
            sequences=sequences,
            pays=pays,
            gains=drafts & ~worse & self.able,
            best=best,
            gain_s=np.where(pays, gain_s, 0.0),
            tokens=tokens[np.arange(len(best)), best],
            takes=1.0 + more_s / self.iteration_s,
        )


def _least(table: Floats, begin: Ints) -> Floats:
    """(s,) minima of (m, q) values, of the rows from each of `begin` on."""
    if not len(begin):
        return np.zeros(0)
    return np.asarray(np.minimum.reduceat(table.min(axis=1), begin))


def _cheapest(work: Floats, begin: Ints) -> tuple[Ints, Ints]:
    """(s,) row and choice of least work in each of these parts; the first of equals."""
    part = np.zeros(len(work), dtype=np.int64)
    part[begin[1:]] = 1
    good = np.flatnonzero(work.min(axis=1, initial=np.inf) <= _least(work, begin)[np.cumsum(part)])
    row = good[np.searchsorted(good, begin)]
    return row, np.argmin(work[row], axis=1)
