"""StaleFlow: route to where throughput rises most, if it rises enough; take back what only waits.

StaleFlow's coordinator (arXiv 2601.12784), from published notes on it, not from its code.
Correctness class: corrected, for it exists to bound how stale trajectories are, not to avoid it.

Throughput of a replica that runs n sequences with kv tokens of context, in tokens per second:

    T(n, kv) = n / (k1 kv + max(k2, k3 n) + k4)

The paper profiles k1..k4 offline.  Here they are the forecast's, fitted online: k1 is its
`token_s`, k3 its `sequence_s`, k4 its `fixed_s`, and k2 = 0, as a line cannot tell the floor of the
max from k4.  Beyond the engine's slots or its KV capacity, or behind a queue in the engine, a
newcomer would not run, so T does not rise.

*Route* ("waterfall").  Waiting trajectories queue by the oldest weight version in them, oldest
first, those that have none yet last.  One after the other goes to the replica with the largest
rise dT of T by its context, if dT >= mu * dT_ideal, the throughput that it would have alone on the
best idle replica.  The first that nobody takes holds up the rest.

*Interrupt.*  From a replica whose engine has more than `phi_wait` requests queued, the excess goes
elsewhere: those placed last, as engines serve in order.  Where the throughput of two replicas
differs by more than `psi`, trajectories go from where T falls least to where it rises most, the
smallest contexts first, while T of both together rises.  The paper sends what it interrupts back to
its trajectory server, to be routed again; here it migrates straight to where routing would send it,
under the same test, and else stays.  Which trajectories, and how many, are our choice.

*Snapshot and speculative state.*  The paper validates a snapshot of the replicas against the
effects of commands that it does not show yet.  The observation has both: what was sent but not
carried out is in phase LEAVING, and `destination_row`, from which n and kv are counted, has it
where it goes.  The commands of this tick are added as they are made.

*Staleness.*  The bound is V_traj + eta >= V_buf, eta = `trainer.max_lag`, V_buf the trainer's
version.  A replica with older weights than that gets nothing, as everything it writes would break
the bound (if all are so old: the newest serve).  Reserving places in the training batches to come
is the trainer's admission of groups, and pulling weights is the fleet's; neither is done here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import NO_VERSION, Bools, Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range, Stateless
from steersman.policies.decision import Action, Decision, place
from steersman.policies.placement._throughput import Flow

NAME = "stale_flow"
FRESH_METRICS_S = 2.0
"""Older reports of an engine's queue are ignored."""


@dataclass
class StaleFlow(Stateless):
    """What we read of the paper leaves the values of mu, phi_wait and psi open."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED

    mu: float = 0.02
    """Share of the ideal rise below which a trajectory rather waits.  A replica with as much batch
    work as fixed work (k3 n = k4) still offers a fourth; a large mu starves a step of its batch."""
    phi_wait: int = 2
    """Requests in an engine's queue that are left there."""
    psi: float = 0.3
    """Share of the higher throughput by which another replica must be below it; 1: never."""
    max_moves: int = 4
    """Interrupts per tick."""
    rest_s: float = 20.0
    """Seconds a trajectory is left alone after a move, so that its prefill pays."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "mu": Range(0.001, 0.5, log=True),
        "phi_wait": Range(0, 32, integer=True),
        "psi": Range(0.05, 1.0),
        "max_moves": Range(0, 16, integer=True),
        "rest_s": Range(2.0, 200.0, log=True),
    }

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Route what waits, then interrupt what waits in engines or evens out the fleet."""
        replicas = observation.replicas
        if not replicas.alive.any():
            return []
        queue = np.where(replicas.metrics_age_s <= FRESH_METRICS_S, replicas.waiting, 0)
        flow = Flow.of(observation, forecast, _fresh_enough(observation), queue)
        decisions = self._route(observation, flow)
        rested = observation.running
        moved_s = observation.trajectories.moved_s[rested]
        rested = rested[observation.now_s - moved_s >= self.rest_s]
        decisions += self._relieve(observation, flow, rested, queue)
        gone = {decision.row for decision in decisions}
        rested = rested[~np.isin(rested, list(gone))]
        interrupts = sum(decision.action is Action.MIGRATE for decision in decisions)
        return decisions + self._level(observation, flow, rested, self.max_moves - interrupts)

    def _route(self, observation: Observation, flow: Flow) -> list[Decision]:
        t, queued = observation.trajectories, observation.queued
        version = t.oldest_weight_version[queued]
        level = np.where(version == NO_VERSION, np.iinfo(np.int64).max, version)
        rows = queued[np.lexsort((queued, t.queued_s[queued], level))]
        targets, rises = flow.fill(flow.context[rows], self.mu)
        chosen = zip(rows.tolist(), targets.tolist(), rises.tolist(), strict=False)
        return [
            place(observation, row, to, NAME, f"adds {rise:.3g} tokens/s there, the most")
            for row, to, rise in chosen
        ]

    def _relieve(
        self, observation: Observation, flow: Flow, rows: Ints, queue: Ints
    ) -> list[Decision]:
        """Away from engines with a long queue."""
        t, decisions = observation.trajectories, list[Decision]()
        by_name = np.argsort(flow.rank)
        for source in by_name[queue[by_name] > self.phi_wait].tolist():
            own = rows[t.replica_row[rows] == source]
            last = own[np.lexsort((own, -t.placed_s[own]))]
            for row in last[: queue[source] - self.phi_wait].tolist():
                target, _ = flow.best(int(flow.context[row]), self.mu)
                if target in (-1, source) or len(decisions) == self.max_moves:
                    break
                flow.move(source, target, int(flow.context[row]))
                why = f"{queue[source]} wait in its engine"
                decisions.append(_migrate(observation, row, target, why))
        return decisions

    def _level(self, observation: Observation, flow: Flow, rows: Ints, most: int) -> list[Decision]:
        """From high to low throughput."""
        t, decisions = observation.trajectories, list[Decision]()
        rows = rows[np.lexsort((rows, flow.context[rows]))]
        for _ in range(max(most, 0)):
            rate = flow.rate()
            high = float(rate.max())
            if high - rate[flow.alive].min() <= self.psi * high:
                break
            pair = _best_move(flow, rows, t.replica_row)
            if pair is None:
                break
            row, target = pair
            flow.move(int(t.replica_row[row]), target, int(flow.context[row]))
            rows = rows[rows != row]
            why = "it slows its replica more than its new one"
            decisions.append(_migrate(observation, row, target, why))
        return decisions


def _fresh_enough(observation: Observation) -> Bools:
    """(r,) living replicas whose weights the lag bound admits; if none: the newest living."""
    replicas, trainer = observation.replicas, observation.trainer
    version = replicas.weight_version
    good = replicas.alive & (version + trainer.max_lag >= trainer.weight_version)
    if good.any():
        return np.asarray(good)
    return np.asarray(replicas.alive & (version == version[replicas.alive].max()))


def _best_move(flow: Flow, rows: Ints, replica_row: Ints) -> tuple[int, int] | None:
    """The row and target by which the fleet's throughput rises most, if it does."""
    if not len(rows):
        return None
    _, first = np.unique(flow.rank[replica_row[rows]], return_index=True)
    leaving = rows[first]  # of each replica that may send, by name
    sources = replica_row[leaving]
    rise = flow.rise(flow.context[leaving][:, None])
    rise[np.arange(len(leaving)), sources] = 0.0
    most = rise.max(axis=1)
    # where an overfull replica would gain by one less, it still must run elsewhere
    total_rise = np.where(most > 0, most - flow.fall(sources, flow.context[leaving]), 0.0)
    best, gain = None, 0.0
    for i, total in enumerate(total_rise.tolist()):
        if total > gain + 1e-9:
            best, gain = (int(leaving[i]), flow.first(rise[i])), total
    return best


def _migrate(observation: Observation, row: int, target: int, why: str) -> Decision:
    ids, name = observation.trajectories.trajectory_id, observation.replicas.names[target]
    return Decision(int(ids[row]), Action.MIGRATE, NAME, why, name, row=row)


PLUGIN: type[PlacementPolicy] = StaleFlow
