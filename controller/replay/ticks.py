"""One decision after another, in virtual time: observe, decide, apply, let time pass."""

import math
import time
from collections.abc import Sequence

import numpy as np

from steersman.controller.config import Config
from steersman.controller.core import Controller
from steersman.controller.horizon.runner import InlineHorizon
from steersman.controller.plugins import build
from steersman.controller.replay._timeline import Timeline
from steersman.controller.replay.options import Options
from steersman.controller.replay.outcome import Result, Samples, StepResult
from steersman.controller.replay.world import World
from steersman.estimators.errors import FleetError
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Objective, Observation, TrainerSignal
from steersman.mechanisms.simulated.spec import EventKind
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action

WAKES = (EventKind.FINISHED, EventKind.LOST)
LONGEST_STEP_S = 1e7
"""Virtual seconds after which a step is taken for one that never ends."""


class Ticks:
    """A world under one controller."""

    def __init__(
        self, world: World, controller: Controller, config: Config, options: Options
    ) -> None:
        self.world = world
        self._controller, self._config, self._options = controller, config, options
        self._horizon = InlineHorizon(controller.placement, config.horizon)
        self._timeline = Timeline(options.scenario.events)
        self._fallback: PlacementPolicy = build(
            "policies.placement", config.fallback.name, config.fallback.options
        )
        self.samples = Samples()
        self.decided_s: list[float] = []
        """Seconds of real time that each decision took."""
        self.started_s = 0.0
        self._step = 0

    def begin_step(self, step: int) -> None:
        """A step, or a batch of a stream, begins now."""
        self._step, self.started_s = step, self.world.now_s
        self._timeline.begin_step(step, self.started_s)

    def once(
        self, max_lag: int, objective: Objective, groups_wanted: int, placing: bool = True
    ) -> None:
        """Observe, decide, and let time pass until the next decision; nothing new is placed while
        not `placing`."""
        world = self.world
        seen = world.observe(self._signal(max_lag, objective, groups_wanted))
        seen = self._horizon.advised(seen)
        self.samples.add(seen)
        self._decide(seen, placing)
        # what a decision has parked may still go on in a step in which a replica joins
        if world.waiting and not (seen.replicas.alive.any() or self._timeline.joins):
            raise FleetError(f"no replica is alive in step {self._step}; it cannot be completed")
        if placing and not world.running and world.waiting:
            self._act_by_default(seen)
        until_s = world.now_s + self._config.tick_s
        eager = world.waiting or objective is Objective.STREAM
        if self._wait(until_s, WAKES if eager else ()) and world.now_s < until_s:
            self._wait(min(world.now_s + self._options.reaction_s, until_s), ())
        if world.now_s - self.started_s > LONGEST_STEP_S:
            policy = self._config.placement.name
            raise FleetError(f"step {self._step} does not end: {policy} stalls")

    def pass_time(self, until_s: float) -> None:
        """Nobody decides meanwhile; what the scenario has in store happens."""
        while self.world.now_s < until_s:
            self._wait(until_s, ())

    def update_weights(self, weight_version: int, max_lag: int) -> None:
        """Every replica holds still for the update's seconds, then goes on under the weights."""
        world, seconds = self.world, self._options.scenario.weights.seconds
        replicas = range(world.plan.replicas)
        if seconds:
            for replica in replicas:
                world.core.pause(replica)
            self.pass_time(world.now_s + seconds)
        world.new_weights(weight_version, max_lag)
        if seconds:
            for replica in replicas:
                world.core.resume(replica)

    def _wait(self, until_s: float, stop_on: Sequence[EventKind]) -> bool:
        """Until then, or until something happens: True."""
        world = self.world
        upto_s = max(min(until_s, self._timeline.next_s), world.now_s)
        world.advance(upto_s, stop_on)
        return world.now_s < upto_s or self._timeline.happen(world)

    def _decide(self, seen: Observation, placing: bool) -> None:
        started = time.perf_counter()
        verdict = self._controller.decide(seen)
        self.decided_s.append(time.perf_counter() - started)
        self._horizon.look(seen, verdict.forecast)
        decisions = verdict.decisions
        if not placing:
            decisions = [d for d in decisions if d.action is not Action.PLACE]
        self.world.apply(decisions)
        self.world.draft(verdict.drafts)

    def _act_by_default(self, seen: Observation) -> None:
        rng = np.random.default_rng((self._config.seed, seen.tick))
        self.world.apply(self._fallback.decide(seen, Forecast.unknown(seen), rng))

    def _signal(self, max_lag: int, objective: Objective, groups_wanted: int) -> TrainerSignal:
        return TrainerSignal(
            step=self._step,
            weight_version=self.world.weight_version,
            max_lag=max_lag,
            objective=objective,
            groups_wanted=groups_wanted,
            step_started_s=self.started_s,
            normaliser=self._config.normaliser,
        )

    def result(self, steps: list[StepResult]) -> Result:
        """Of a run that is over."""
        world, decided_s = self.world, self.decided_s
        return Result(
            policy=self._config.placement.name,
            steps=steps,
            attempts=world.intervals.attempts(),
            samples=self.samples,
            decisions=len(decided_s),
            decide_s=sum(decided_s),
            tick_ms_p99=1e3 * float(np.quantile(decided_s or [0.0], 0.99)),
            preemptions=int((world.core.state().preemptions - world.forgiven).sum()),
            unsupported=self._unsupported(),
            prompt_tokens=world.ints["prompt_tokens"],
            loops=world.ints["loops_from"] >= 0,
        )

    def _unsupported(self) -> float:
        """Share of the busy replica time at a batch the profile never saw."""
        if not self.samples.running:
            return 0.0
        each = self.world.plan.each
        lowest = np.array([profile.batch_range[0] for profile in each], dtype=np.float64)
        highest = np.array([profile.batch_range[1] or math.inf for profile in each])
        running = np.stack(self.samples.running)
        busy = running > 0
        outside = busy & ((running > highest) | (running < lowest))
        return float(outside.sum() / max(int(busy.sum()), 1))
