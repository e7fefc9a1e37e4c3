"""Adaptive concurrency: one cap on what is in flight, grown and cut by what the engines report.

prime-rl's `ConcurrencyController` and the admission meter of its dispatcher (pull request 3285; the
constants are those of commit 559b447).  The cap starts at KV capacity / longest possible
trajectory.  Then, polling the engines every `poll_s`:

- grow: while the last poll saw every KV cache at or below `kv_grow`, no preemption and no queue,
  each completion multiplies the cap by growth ** (1 / in flight), if the cap binds: by `growth` per
  turnover of the whole pool.
- trim: above `kv_soft` the cap falls to in flight * kv_target / usage; above `kv_hard` what is then
  too many is shed as well.
- cut: after a preemption to `preemption_cut` of what is in flight; after six polls with more than
  half as many queued as running to `queue_cut`; overload within six polls after the drain of a cut
  cuts to `escalated_cut`.  No further cut while a drain lasts: without that rule prime-rl saw cuts
  cascade from 1024 to 8.
- burst: what is in flight grows by at most a tenth of the cap (at least `burst`) per 5 s;
  replacing what completed is free.

Open groups are filled before new ones begin, each sample goes to the replica with the fewest in
flight (prime-rl leaves that to its router), and what the cap has no room for waits here.

Shedding.  prime-rl cancels the youngest groups and draws other prompts instead, which favours
prompts that finish fast.  Here nothing is thrown away: admission is held, and with
`defer_youngest` the youngest groups are parked for the next step (barrier trainers only, as a
stream resumes nothing; within the lag bound and the guard's moves per tick).

Not here: evaluation episodes, prefill-only engines, and the count of requests that queue for
memory alone (all that an engine queues counts, which is prime-rl's own fallback).  It knows no
lengths, so it is late by design: contexts that grow together outrun a poll.

Correctness class: exact; with `defer_youngest` corrected, as newer weights write the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Ints, Objective, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._admission import fill, placements
from steersman.policies.placement._concurrency_cap import Cap, Rule
from steersman.policies.placement._lag import may_go_on

NAME = "adaptive_concurrency"


@dataclass
class AdaptiveConcurrency:
    """The defaults are prime-rl's; thresholds are shares of a KV cache, the fullest counts."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED
    """The worst that the options allow; exact by default."""

    growth: float = 1.25
    """Factor per turnover."""
    kv_grow: float = 0.6
    kv_soft: float = 0.8
    kv_hard: float = 0.9
    kv_target: float = 0.7
    """Below `kv_soft`, so that contexts have room to grow before the next trim."""
    preemption_cut: float = 0.8
    queue_cut: float = 0.9
    escalated_cut: float = 0.5
    min_inflight: int = 1
    max_inflight: int = 1024
    burst: int = 8
    """Least growth per window: prime-rl takes a group's size, and 8 where it knows none."""
    poll_s: float = 5.0
    defer_youngest: bool = False
    """Whether a hard trim or a cut also parks the youngest groups for the next step."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "growth": Range(1.02, 2.0, log=True),
        "kv_grow": Range(0.3, 0.95),
        "kv_soft": Range(0.5, 0.99),
        "kv_target": Range(0.4, 0.95),
        "preemption_cut": Range(0.5, 0.95),
        "burst": Range(1, 256, integer=True, log=True),
        "poll_s": Range(0.5, 30.0, log=True),
    }
    """Not `defer_youngest`: how stale samples may be is not for a search."""

    _cap: Cap = field(default_factory=Cap, init=False)

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Move the cap, shed if asked to, then admit what fits below it."""
        rule, cap, now_s = self._rule(), self._cap, observation.now_s
        inflight = int(observation.inflight().sum())
        cap.start(observation, rule)
        ended = int((observation.ended.generated_tokens > 0).sum())
        cap.completed(ended, inflight, now_s, rule)
        excess = cap.poll(observation, inflight, rule)
        if excess and self.defer_youngest and observation.trainer.objective is Objective.BARRIER:
            return _shed(observation, excess)
        rows = _open_groups_first(observation)
        room = np.where(observation.replicas.alive, len(rows), 0)
        targets = fill(observation, room, min(len(rows), cap.room(inflight, now_s, rule)))
        reason = f"{inflight} in flight, below the cap of {cap.limit}"
        return placements(observation, rows, targets, NAME, reason)

    def state_dict(self) -> dict[str, Any]:
        """The cap and what the polls left behind."""
        return self._cap.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the cap."""
        self._cap = Cap(**state)

    def _rule(self) -> Rule:
        return Rule(
            growth=self.growth,
            kv_grow=self.kv_grow,
            kv_soft=self.kv_soft,
            kv_hard=self.kv_hard,
            kv_target=self.kv_target,
            preemption_cut=self.preemption_cut,
            queue_cut=self.queue_cut,
            escalated_cut=self.escalated_cut,
            min_inflight=self.min_inflight,
            max_inflight=self.max_inflight,
            burst=self.burst,
            poll_s=self.poll_s,
        )


def _open_groups_first(observation: Observation) -> Ints:
    """Waiting rows: of groups that have begun, then of the others, oldest group first."""
    t, queued = observation.trajectories, observation.queued
    begun = np.zeros(len(observation.groups), dtype=np.bool_)
    begun[t.group_row[t.phase != Phase.QUEUED]] = True
    group = t.group_row[queued]
    return np.asarray(queued[np.lexsort((queued, group, ~begun[group]))])


def _shed(observation: Observation, excess: int) -> list[Decision]:
    """Park whole groups, the youngest first, until `excess` have left.

    A group is as old as its first member in flight.  One that is partly waiting or already leaving,
    or that the lag bound would not let resume, is passed over: half a group helps nobody.
    """
    t = observation.trajectories
    able = (t.phase == Phase.RUNNING) & may_go_on(observation)
    whole = np.ones(len(observation.groups), dtype=np.bool_)
    whole[t.group_row[~able & (t.phase != Phase.ENDED)]] = False
    began_s = np.full(len(observation.groups), np.inf)
    running = observation.running
    np.minimum.at(began_s, t.group_row[running], t.placed_s[running])
    groups = np.flatnonzero(whole & np.isfinite(began_s))
    groups = groups[np.lexsort((-groups, -began_s[groups]))]
    size = np.bincount(t.group_row[running], minlength=len(whole))[groups]
    taken = groups[np.cumsum(size) - size < excess]
    rows = running[np.isin(t.group_row[running], taken)]
    reason = f"{excess} in flight too many; its group is among the youngest"
    ids = t.trajectory_id[rows].tolist()
    return [
        Decision(i, Action.DEFER, NAME, reason, row=row)
        for i, row in zip(ids, rows.tolist(), strict=True)
    ]


PLUGIN: type[PlacementPolicy] = AdaptiveConcurrency
