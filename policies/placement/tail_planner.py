"""Tail planner, version 1: longest first, then relieve or put off whatever holds the step up.

Model.  With iteration time tau(b) = M + c b, a replica that runs its batch to the end needs exactly
T_r = M * Lmax_r + c * sum(L_r): the longest trajectory pays M per token, every token pays c once.
(The collapse of TailSieve's sum over batch sizes, arXiv 2608.22788, for an affine tau.)

Admission.  Waiting trajectories stay at the controller until a replica has a slot for them, plus a
small backlog in its engine, so that late knowledge still counts.  Objective `barrier`: longest
expected first, each to the replica that ends soonest (LPT list scheduling: Graham 1969).  Objective
`stream`: by oldest step, then by group with the least left, so that whole groups complete soon.

Tail (barrier, nothing waits).  (1) *Defer* the few latest groups if that raises the step's rate of
groups even should they prove short (`_deferral`).  (2) *Migrate* from the replica that would end
last to one that would end much sooner, if the later of the two then ends earlier, at the expected
length and at the lower quantile, by more than it costs: the prefill of prompt and tokens and a
fixed hand-over (`_migration`).  Doing nothing is always a candidate.  A trajectory rests after a
move, and a tick has few moves, for a forecast moves less than a fleet that chases it.

Not here: restart (it discards tokens, and redrawing what grew long biases to short answers),
isolate (it needs a pool kept free for it) and stop (it changes the answer).  They need an estimate
of an answer's value or a plan over steps.

It is wrong when lengths cannot be told apart (then it is a work-conserving queue), and when M and c
do not describe the engine (KV cache near full).  Correctness class: exact; deferral makes a
trajectory corrected, as newer weights write its rest.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Ints, Objective, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._deferral import best_deferral
from steersman.policies.placement._load import Load
from steersman.policies.placement._migration import MoveSearch

NAME = "tail_planner"
FRESH_METRICS_S = 2.0
"""Older reports of an engine's queue are ignored: they would block a replica that has moved on."""


@dataclass
class TailPlanner:
    """One set of defaults was tried on toy fleets with M of 2-24 ms and c of 0.15-0.8 ms."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED

    backlog: int = 2
    """Trajectories kept in a replica's own queue; 0 lets slots idle a tick, many binds early."""
    max_moves: int = 2
    """Migrations per tick; 0 turns migration off."""
    imbalance: float = 0.35
    """A target must end sooner than the last replica by this share of its time; 1: never."""
    cooldown_s: float = 20.0
    """Seconds a trajectory rests after a move; 0 lets it wander."""
    handover_s: float = 0.5
    """Seconds a migrated trajectory stands still, prefill aside: about two polls."""
    defer_share: float = 0.1
    """Largest share of a step's groups that is put off; 0 turns deferral off."""
    defer_margin: float = 0.05
    """Deferral must raise the step's groups per second by this share; large: never."""
    max_deferrals: int = 1
    """Times one trajectory may be put off; the lag bound may allow less."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        # beyond a few per replica the queues in the engines bind as early as placing at once does
        "backlog": Range(0, 8, integer=True),
        "max_moves": Range(0, 8, integer=True),
        # forecasts of a replica's end are not good to less than a twentieth
        "imbalance": Range(0.05, 0.95),
        # the guard's rest of 2 s holds anyway; a few minutes are a whole step
        "cooldown_s": Range(2.0, 200.0, log=True),
        # only downwards: replay sees the seconds that putting off saves, not what stale samples
        # cost the trainer
        "defer_share": Range(0.0, 0.1),
        "defer_margin": Range(0.01, 0.5, log=True),
    }
    """Not `max_deferrals`: how stale samples may be is not for a search.  Not `handover_s`: it
    belongs to the fleet, and a search would learn the simulator's."""

    _step: int = field(default=-1, init=False)
    _step_start_s: float = field(default=0.0, init=False)
    _step_groups: int = field(default=0, init=False)
    """Most groups of this step seen at once."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Admit while something waits; look after the tail when nothing does."""
        self._follow_step(observation)
        if len(observation.queued):
            return self._admit(observation, forecast)
        if observation.trainer.objective is not Objective.BARRIER:
            return []
        return self._defer(observation, forecast) or self._migrate(observation, forecast)

    def state_dict(self) -> dict[str, Any]:
        """The present step: number, start, groups."""
        return {
            "step": self._step,
            "step_start_s": self._step_start_s,
            "step_groups": self._step_groups,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what it knows of the present step."""
        self._step, self._step_start_s = int(state["step"]), float(state["step_start_s"])
        self._step_groups = int(state["step_groups"])

    def _follow_step(self, observation: Observation) -> None:
        step = observation.trainer.step
        if step != self._step:
            self._step, self._step_start_s = step, observation.now_s
            self._step_groups = 0
        now = int((observation.groups.step == step).sum())
        self._step_groups = max(self._step_groups, now, observation.trainer.groups_wanted)

    def _admit(self, observation: Observation, forecast: Forecast) -> list[Decision]:
        replicas, load = observation.replicas, Load.of(observation, forecast)
        room, end = self._room(observation), load.end_s
        heap = [(float(end[row]), replicas.names[row], row) for row in np.flatnonzero(room > 0)]
        heapq.heapify(heap)
        order = _admission_order(observation, forecast)[: int(room.sum())]
        length = forecast.length
        rule = "shortest" if observation.trainer.objective is Objective.STREAM else "longest"
        fixed, slope = load.fixed_s.tolist(), load.per_sequence_s.tolist()
        longest, work, room_left = load.longest.tolist(), load.work.tolist(), room.tolist()
        reasons = [
            f"{rule} first; {n} ends soonest ({e:.0f} s)"
            for n, e in zip(replicas.names, end, strict=True)
        ]
        decisions: list[Decision] = []
        rows = zip(
            order.tolist(),
            observation.trajectories.trajectory_id[order].tolist(),
            length.mean_remaining_tokens[order].tolist(),
            length.upper[order].tolist(),
            strict=True,
        )
        for row, trajectory_id, mean, upper in rows:
            _, name, r = heap[0]
            decisions.append(Decision(trajectory_id, Action.PLACE, NAME, reasons[r], name, row=row))
            work[r] += mean
            longest[r] = max(longest[r], upper)
            room_left[r] -= 1
            if room_left[r] > 0:
                end_s = fixed[r] * longest[r] + slope[r] * work[r]
                heapq.heapreplace(heap, (end_s, name, r))
            else:
                heapq.heappop(heap)
        return decisions

    def _room(self, observation: Observation) -> Ints:
        """(r,) trajectories each replica can take now."""
        replicas, inflight = observation.replicas, observation.inflight()
        room = np.maximum(replicas.max_num_seqs, 1) + self.backlog - inflight
        fresh = replicas.metrics_age_s <= FRESH_METRICS_S
        full = fresh & (replicas.waiting > self.backlog) & (inflight > 0)
        return np.where(replicas.alive & ~full, np.maximum(room, 0), 0)

    def _migrate(self, observation: Observation, forecast: Forecast) -> list[Decision]:
        t, names = observation.trajectories, observation.replicas.names
        if self.max_moves <= 0 or len(names) < 2:
            return []
        running = observation.running
        rested = running[observation.now_s - t.moved_s[running] >= self.cooldown_s]
        load = Load.of(observation, forecast)
        search = MoveSearch(observation, forecast, load, self.handover_s, self.imbalance, rested)
        decisions: list[Decision] = []
        for _ in range(self.max_moves):
            end = load.end_s
            move = search.next()
            if move is None:
                break
            source, target = names[move.source], names[move.target]
            later = end[move.source] - end[move.target]
            decisions.append(
                Decision(
                    int(t.trajectory_id[move.row]),
                    Action.MIGRATE,
                    NAME,
                    f"{source} would end {later:.1f} s after {target}; moving one of its longest"
                    f" takes {move.cost_s:.1f} s, and all end {move.gain_s:.1f} s sooner",
                    target,
                    gain_s=move.gain_s,
                    cost_s=move.cost_s,
                    row=move.row,
                )
            )
        return decisions

    def _defer(self, observation: Observation, forecast: Forecast) -> list[Decision]:
        plan = best_deferral(
            observation,
            forecast,
            elapsed_s=observation.now_s - self._step_start_s,
            step_groups=self._step_groups,
            share=self.defer_share,
            margin=self.defer_margin,
            max_deferrals=self.max_deferrals,
        )
        if plan is None:
            return []
        reason = (
            f"{plan.groups} of the step's {self._step_groups} groups would hold it up for"
            f" {plan.gain_s:.1f} s; they go on in the next step"
        )
        ids = observation.trajectories.trajectory_id
        return [
            Decision(
                int(ids[row]),
                Action.DEFER,
                NAME,
                reason,
                gain_s=plan.gain_s,
                cost_s=plan.cost_s,
                row=row,
            )
            for row in plan.rows.tolist()
        ]


def _admission_order(observation: Observation, forecast: Forecast) -> Ints:
    """Queued rows, the one to place first first; ties by row, which is by id."""
    queued, t = observation.queued, observation.trajectories
    mean = forecast.length.mean_remaining_tokens
    if observation.trainer.objective is Objective.BARRIER:
        return np.asarray(queued[np.lexsort((queued, -mean[queued]))])
    longest = np.zeros(len(observation.groups))
    unfinished = t.phase != Phase.ENDED
    np.maximum.at(longest, t.group_row[unfinished], mean[unfinished])
    group = t.group_row[queued]
    step = observation.groups.step[group]
    return np.asarray(queued[np.lexsort((queued, group, longest[group], step))])


PLUGIN: type[PlacementPolicy] = TailPlanner
