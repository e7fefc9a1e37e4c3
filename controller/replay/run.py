"""The replay loop: the live controller's `decide` on a simulated fleet, in virtual time.

Barrier: a step's groups are admitted, parked ones are resumed, and it is over when every trajectory
has its answer or is parked; then the weights change.  A final step drains what is parked.

Stream: groups are admitted whenever fewer than `inflight_groups` are open; with every
`batch_groups` that are complete the trainer has a batch, and the weights change while the rest goes
on (its KV caches are computed again).  A "step" is then the time to the next full batch.  Samples
beyond the lag bound are not replaced.

Decisions come every `tick_s`, and soon after an end or a loss while anything waits (the live loop
is woken likewise).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from steersman.controller.config import Config
from steersman.controller.core import Controller
from steersman.controller.plugins import build
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.intervals import Attempts
from steersman.controller.replay.workload import Asked, Workload
from steersman.controller.replay.world import World
from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Objective, Observation, TrainerSignal
from steersman.mechanisms.simulated.spec import EventKind
from steersman.policies.contract import PlacementPolicy

WAKES = (EventKind.FINISHED, EventKind.LOST)
LONGEST_STEP_S = 1e7
"""Virtual seconds after which a step is taken for one that never ends."""


@dataclass(frozen=True)
class Options:
    """How a replay goes about it."""

    reaction_s: float = 0.05
    """Seconds from an end to the decision it wakes: polling, coalescing, deciding."""
    latency_s: float = 0.06
    """Seconds from a step's beginning to its engines' first iteration, and from its last token to
    its being known, together: 0.06 measured on a local Ray fleet, half of it polling."""
    inflight_groups: int = 0
    """Groups open at once in a stream; 0: a barrier trainer's steps."""
    batch_groups: int = 0
    """Complete groups that make a batch of a stream."""
    between_steps_s: float = 0.0
    """Seconds between two barrier steps' rollouts; nothing runs then."""

    def __post_init__(self) -> None:
        if self.inflight_groups and self.batch_groups < 1:
            raise InvalidInputError("a stream needs batch_groups of 1 or more")


@dataclass(frozen=True)
class StepResult:
    """What one step took and what it delivered."""

    step: int
    start_s: float
    makespan_s: float
    asked: int
    """Trajectories it admitted."""
    finished: int
    """Trajectories that ended in it, carried-over ones included."""
    truncated: int
    deferred: int
    moves: int
    tokens: int
    """Of what ended in it."""
    mean_length_asked: float
    mean_length_kept: float
    """Of its own trajectories that ended in it; NaN: none did."""


@dataclass
class Samples:
    """The fleet at every decision."""

    time_s: list[float] = field(default_factory=list)
    running: list[Ints] = field(default_factory=list)
    """(r,) each."""
    waiting: list[int] = field(default_factory=list)
    """At the controller and in the engines' queues."""
    kv_cache_usage: list[Floats] = field(default_factory=list)

    def add(self, seen: Observation) -> None:
        """One more."""
        self.time_s.append(seen.now_s)
        self.running.append(seen.replicas.running)
        self.waiting.append(int(seen.replicas.waiting.sum()) + len(seen.queued))
        self.kv_cache_usage.append(seen.replicas.kv_cache_usage)


@dataclass(frozen=True)
class Result:
    """A whole replay."""

    policy: str
    steps: list[StepResult]
    attempts: Attempts
    samples: Samples
    decisions: int
    decide_s: float
    """Seconds of real time that deciding took in all; `decisions` ticks shared them."""
    preemptions: int
    unsupported: float
    """Share of the replica time beyond the loads the profile was fitted on."""


def replay(
    workload: Workload,
    plan: FleetPlan,
    config: Config,
    options: Options = Options(),
    after_step: Callable[[], object] = lambda: None,
) -> Result:
    """Run every step of the workload under `config`'s policy."""
    run = _Run(World(plan), Controller.from_config(config), config, options)
    if options.inflight_groups:
        run.stream(workload, after_step)
        return run.result()
    for asked in workload.steps:
        run.step(asked)
        after_step()
    run.drain()
    return run.result()


class _Run:
    def __init__(
        self, world: World, controller: Controller, config: Config, options: Options
    ) -> None:
        self._world, self._controller, self._config = world, controller, config
        self._options = options
        self._fallback: PlacementPolicy = build(
            "policies.placement", config.fallback.name, config.fallback.options
        )
        self._samples, self._steps = Samples(), list[StepResult]()
        self._ticks, self._decide_s, self._started_s = 0, 0.0, 0.0

    def step(self, asked: Asked) -> None:
        """One step of the trainer."""
        world = self._world
        if self._steps:
            self._let_last_step_be_known()
            world.advance(world.now_s + self._options.between_steps_s)
            world.new_weights(world.weight_version + 1)
        before = _Totals.of(world)
        self._started_s = world.now_s
        world.resume_parked()
        rows = world.admit(asked)
        self._until_settled(asked.step, max_lag=self._config.max_lag)
        self._steps.append(self._summary(asked.step, rows, before))

    def stream(self, workload: Workload, after_batch: Callable[[], object]) -> None:
        """All groups in their order, as many open at once as the options allow."""
        world, groups = self._world, workload.groups()
        admitted = batch = 0
        before, first, told = _Totals.of(world), 0, np.zeros(0, dtype=np.int64)
        self._started_s = world.now_s
        while admitted < groups.count or world.open_groups:
            room = min(self._options.inflight_groups - world.open_groups, groups.count - admitted)
            if room > 0:
                world.admit(groups.part(admitted, admitted + room, batch))
                admitted += room
            self._tick_once(batch, self._config.max_lag, Objective.STREAM)
            over = admitted == groups.count and not world.open_groups
            if over or world.complete_groups - first >= self._options.batch_groups:
                rows = np.flatnonzero(world.ints["phase"] == Phase.ENDED)
                self._steps.append(self._summary(batch, np.setdiff1d(rows, told), before))
                told = rows
                before, first, batch = _Totals.of(world), world.complete_groups, batch + 1
                self._started_s = world.now_s
                world.new_weights(batch)
                after_batch()

    def drain(self) -> None:
        """Finish what is parked, without parking again."""
        if (self._world.ints["phase"] == Phase.PARKED).any():
            self._let_last_step_be_known()
            before, none = _Totals.of(self._world), np.zeros(0, dtype=np.int64)
            self._started_s = self._world.now_s
            self._world.resume_parked()
            number = self._steps[-1].step + 1
            self._until_settled(number, max_lag=0)
            self._steps.append(self._summary(number, none, before))

    def _let_last_step_be_known(self) -> None:
        last, world = self._steps[-1], self._world
        world.advance(max(world.now_s, last.start_s + last.makespan_s))

    def result(self) -> Result:
        """Everything."""
        state = self._world.core.state()
        return Result(
            policy=self._config.placement.name,
            steps=self._steps,
            attempts=self._world.intervals.attempts(),
            samples=self._samples,
            decisions=self._ticks,
            decide_s=self._decide_s,
            preemptions=int((state.preemptions - self._world.forgiven).sum()),
            unsupported=self._unsupported(),
        )

    def _until_settled(self, step: int, max_lag: int) -> None:
        while not self._settled():
            self._tick_once(step, max_lag, Objective.BARRIER)

    def _tick_once(self, step: int, max_lag: int, objective: Objective) -> None:
        """Observe, decide, and let time pass until the next decision."""
        world = self._world
        seen = world.observe(self._signal(step, max_lag, objective))
        self._samples.add(seen)
        self._decide(seen)
        if not world.running and world.waiting:
            self._act_by_default(seen)
        until = world.now_s + self._config.tick_s
        if world.waiting or objective is Objective.STREAM:
            events = world.advance(until, stop_on=WAKES)
            if len(events) and world.now_s < until:
                world.advance(min(world.now_s + self._options.reaction_s, until))
        else:
            world.advance(until)
        if world.now_s - self._started_s > LONGEST_STEP_S:
            raise FleetError(f"step {step} does not end: {self._config.placement.name} stalls")

    def _settled(self) -> bool:
        return not np.isin(
            self._world.ints["phase"], (Phase.QUEUED, Phase.RUNNING, Phase.LEAVING)
        ).any()

    def _decide(self, seen: Observation) -> None:
        started = time.perf_counter()
        verdict = self._controller.decide(seen)
        self._decide_s += time.perf_counter() - started
        self._ticks += 1
        self._world.apply(verdict.decisions)

    def _act_by_default(self, seen: Observation) -> None:
        rng = np.random.default_rng((self._config.seed, seen.tick))
        self._world.apply(self._fallback.decide(seen, Forecast.unknown(seen), rng))

    def _signal(self, step: int, max_lag: int, objective: Objective) -> TrainerSignal:
        return TrainerSignal(
            step=step,
            weight_version=self._world.weight_version,
            max_lag=max_lag,
            objective=objective,
            groups_wanted=self._options.batch_groups,
            step_started_s=self._started_s,
            normaliser=self._config.normaliser,
        )

    def _summary(self, step: int, rows: Ints, before: "_Totals") -> StepResult:
        i, world = self._world.ints, self._world
        after = _Totals.of(world)
        kept = rows[i["phase"][rows] == Phase.ENDED]
        last = max(world.intervals.latest_s + self._options.latency_s, self._started_s)
        return StepResult(
            step=step,
            start_s=self._started_s,
            makespan_s=last - self._started_s,
            asked=len(rows),
            finished=after.ended - before.ended,
            truncated=after.truncated - before.truncated,
            deferred=after.deferred - before.deferred,
            moves=after.moves - before.moves,
            tokens=after.tokens - before.tokens,
            mean_length_asked=float(i["length"][rows].mean()) if len(rows) else float("nan"),
            mean_length_kept=float(i["length"][kept].mean()) if len(kept) else float("nan"),
        )

    def _unsupported(self) -> float:
        """Share of the busy replica time at a batch the profile never saw."""
        lowest, highest = self._world.plan.profile.batch_range
        if not highest or not self._samples.running:
            return 0.0
        running = np.stack(self._samples.running)
        busy = running > 0
        outside = busy & ((running > highest) | (running < lowest))
        return float(outside.sum() / max(int(busy.sum()), 1))


@dataclass(frozen=True)
class _Totals:
    ended: int
    truncated: int
    deferred: int
    moves: int
    tokens: int

    @classmethod
    def of(cls, world: World) -> "_Totals":
        i = world.ints
        over = i["phase"] == Phase.ENDED
        return cls(
            ended=int(over.sum()),
            truncated=int((over & (i["generated"] >= i["cap"])).sum()),
            deferred=int(i["deferred"].sum()),
            moves=int(i["moves"].sum()),
            tokens=int(i["generated"][over].sum()),
        )
