"""A fluid toy of a fleet, just good enough to compare placement policies.

A replica's running sequences each get 1 / (M + c b) tokens per second; a prefill stalls its whole
replica; an engine runs at most `slots` and queues the rest in order of arrival.  Policies are asked
every `TICK_S` and right after every end, with the real estimators' forecasts.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from support.observations import (
    group_table,
    known,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.contract import LengthEstimator, ThroughputEstimator
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    NO_ROW,
    EndedTable,
    Objective,
    Observation,
    TrainerSignal,
)
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action, Decision

TICK_S = 0.25
NOTICE_S = 0.005
"""From an end to the decision that it wakes."""
HANDOVER_S = 0.25
"""From an abort to the partial tokens' arrival at the target."""


@dataclass
class Fleet:
    """The shape of a fleet."""

    replicas: int = 4
    slots: int = 32
    fixed_s: float | np.ndarray = 0.012
    """M, of all replicas or of each."""
    per_sequence_s: float | np.ndarray = 0.00015
    prefill_token_s: float = 0.0001


@dataclass
class Result:
    """What one step took, and what it delivered."""

    makespan_s: float
    tokens: int
    deferred: int
    deferred_groups: int
    moves: int


@dataclass
class TickWorld:
    """One synchronous step of `length` (n,) true lengths in groups of `group_size`."""

    fleet: Fleet
    length: np.ndarray
    prompt_key: np.ndarray
    """(groups,)"""
    group_size: int
    cap: int
    step: int = 0
    now_s: float = 1000.0
    objective: Objective = Objective.BARRIER
    _ended: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, r = len(self.length), self.fleet.replicas
        self.done = np.zeros(n)
        self.phase = np.full(n, int(Phase.QUEUED))
        self.row, self.target = np.full(n, NO_ROW), np.full(n, NO_ROW)
        self.in_batch = np.zeros(n, dtype=np.bool_)
        self.arrival, self.arrivals = np.zeros(n), 0
        self.arrives_s, self.moved_s = np.full(n, np.inf), np.full(n, -np.inf)
        self.moves, self.deferred = np.zeros(n, int), np.zeros(n, int)
        self.placed_s = np.full(n, np.nan)
        self.debt_s, self.counters, self.tick = np.zeros(r), np.zeros((4, r)), 0
        self.start_s = self.now_s

    def run(
        self, policy: PlacementPolicy, length: LengthEstimator, throughput: ThroughputEstimator
    ) -> Result:
        """Run the step to its end."""
        while not np.isin(self.phase, (Phase.ENDED, Phase.PARKED)).all():
            seen = self.observe()
            length.observe(seen)
            throughput.observe(seen)
            forecast = known(seen, length, throughput)
            rng = np.random.default_rng((0, self.tick))
            for decision in policy.decide(seen, forecast, rng):
                self.apply(decision, seen)
            self.advance(self.now_s + TICK_S)
            if self.now_s - self.start_s > 1e5:
                raise RuntimeError("the step does not end")
        length.observe(self.observe())
        parked = self.phase == Phase.PARKED
        groups = np.unique(np.flatnonzero(parked) // self.group_size)
        return Result(
            self.now_s - self.start_s,
            int(self.done.sum()),
            int(parked.sum()),
            len(groups),
            int(self.moves.sum()),
        )

    def observe(self) -> Observation:
        """The snapshot a controller would see now."""
        self.tick += 1
        r, ended = self.fleet.replicas, np.array(self._ended, dtype=np.int64)
        self._ended.clear()
        group_row = np.arange(len(self.length)) // self.group_size
        table = trajectory_table(
            self.phase.copy(),
            self.group_size,
            replica_row=self.row.copy(),
            target_row=self.target.copy(),
            generated_tokens=self.done.astype(np.int64),
            max_new_tokens=np.full(len(self.length), self.cap),
            queued_s=np.full(len(self.length), self.start_s),
            placed_s=self.placed_s.copy(),
            moved_s=self.moved_s.copy(),
            moves=self.moves.copy(),
            deferred=self.deferred.copy(),
            restarts=np.zeros_like(self.deferred),
            oldest_weight_version=np.where(self.done >= 1, self.step, -1),
        )
        groups = group_table(
            len(self.prompt_key),
            prompt_key=self.prompt_key,
            size=np.full(len(self.prompt_key), self.group_size),
            step=np.full(len(self.prompt_key), self.step),
        )
        running = np.bincount(self.row[self.in_batch], minlength=r)
        here = np.bincount(self.row[self.row >= 0], minlength=r)
        replicas = replica_table(
            r,
            max_num_seqs=np.full(r, self.fleet.slots),
            running=running,
            waiting=here - running,
            iterations=self.counters[0].astype(np.int64),
            busy_s=self.counters[1].copy(),
            sequences_run=self.counters[2].copy(),
            prefill_tokens=self.counters[3].astype(np.int64),
        )
        length = self.done[ended].astype(np.int64)
        gone = EndedTable(
            ended,
            group_row[ended],
            self.prompt_key[group_row[ended]],
            np.full(len(ended), 100),
            length,
            length >= self.cap,
            np.ones_like(ended),
            np.full(len(ended), self.step),
        )
        trainer = TrainerSignal(step=self.step, weight_version=self.step, objective=self.objective)
        seen = observation(table, replicas, self.now_s, groups=groups, trainer=trainer, ended=gone)
        return replace(seen, tick=self.tick)

    def apply(self, decision: Decision, seen: Observation) -> None:
        """Carry one decision out."""
        i, r = decision.trajectory_id, -1
        if decision.replica:
            r = seen.replicas.names.index(decision.replica)
        match decision.action:
            case Action.PLACE:
                self._arrive(i, r)
            case Action.MIGRATE:
                self._leave(i, Phase.LEAVING)
                self.target[i], self.arrives_s[i] = r, self.now_s + HANDOVER_S
            case Action.DEFER:
                self._leave(i, Phase.PARKED)
                self.deferred[i] += 1

    def _arrive(self, i: int, r: int) -> None:
        self.phase[i], self.row[i], self.target[i] = Phase.RUNNING, r, NO_ROW
        self.arrives_s[i], self.placed_s[i] = np.inf, self.now_s
        self.arrivals += 1
        self.arrival[i] = self.arrivals

    def _leave(self, i: int, phase: Phase) -> None:
        self.phase[i], self.row[i], self.in_batch[i] = phase, NO_ROW, False
        self.moves[i] += phase == Phase.LEAVING
        self.moved_s[i] = self.now_s

    def _fill(self) -> None:
        """Engines take from their queues what fits, and pay its prefill."""
        waiting = np.flatnonzero((self.row >= 0) & ~self.in_batch)
        free = self.fleet.slots - np.bincount(
            self.row[self.in_batch], minlength=self.fleet.replicas
        )
        for i in waiting[np.argsort(self.arrival[waiting])].tolist():
            r = self.row[i]
            if free[r] > 0:
                free[r] -= 1
                self.in_batch[i] = True
                self.debt_s[r] += (100 + self.done[i]) * self.fleet.prefill_token_s

    def advance(self, until_s: float) -> None:
        """To `until_s`, or to just after the first end."""
        while self.now_s < until_s - 1e-9:
            for i in np.flatnonzero(self.arrives_s <= self.now_s + 1e-9).tolist():
                self._arrive(i, int(self.target[i]))
            self._fill()
            live = np.flatnonzero(self.in_batch)
            rows = self.row[live]
            batch = np.bincount(rows, minlength=self.fleet.replicas)
            tau = self.fleet.fixed_s + self.fleet.per_sequence_s * batch
            left = self.debt_s[rows] + (self.length[live] - self.done[live]) * tau[rows]
            horizon = min(until_s, float(self.arrives_s.min()))
            dt = min(horizon - self.now_s, float(left.min(initial=np.inf)))
            dt = max(dt, 1e-6)
            decoding = np.maximum(dt - self.debt_s, 0.0)
            iterations = np.where(batch > 0, decoding / tau, 0.0)
            prefilled = np.minimum(self.debt_s, dt) / self.fleet.prefill_token_s
            self.debt_s = np.maximum(self.debt_s - dt, 0.0)
            busy = np.where(batch > 0, dt, 0)
            self.counters += np.stack((iterations, busy, iterations * batch, prefilled))
            self.done[live] = np.minimum(self.done[live] + iterations[rows], self.length[live])
            self.now_s += dt
            over = live[self.length[live] - self.done[live] < 1e-6]
            if len(over):
                self.phase[over], self.row[over], self.in_batch[over] = Phase.ENDED, NO_ROW, False
                self.done[over] = self.length[over]
                self._ended += over.tolist()
                until_s = min(until_s, self.now_s + NOTICE_S)


def sibling_lengths(
    rng: np.random.Generator,
    prompts: np.ndarray,
    group_size: int,
    median: float = 1000.0,
    sigma: float = 1.0,
    shared: float = 0.65,
    cap_over_median: float = 16.0,
) -> tuple[np.ndarray, np.ndarray]:
    """True lengths (groups * group_size,) of log-normal prompts, and each group's prompt key.

    `shared` is the share of the variance that siblings have in common, drawn from the key itself,
    so that a prompt is itself again in another step.
    """
    centre = np.array([np.random.default_rng((77, key)).normal() for key in prompts.tolist()])
    own = rng.normal(size=(len(prompts), group_size))
    log = np.log(median) + sigma * (np.sqrt(shared) * centre[:, None] + np.sqrt(1 - shared) * own)
    lengths = np.clip(np.exp(log), 10, cap_over_median * median).astype(np.int64)
    return lengths.ravel().astype(np.float64), prompts
