"""The replay loop: the live controller's `decide` on a simulated fleet, in virtual time.

Barrier: a step's groups are admitted, parked ones are resumed, and it is over when every trajectory
has its answer or is parked; then the weights change.  A final step drains what is parked.

Barrier with `groups_wanted`: the run's groups form one sequence.  Each step carries over the groups
that are not complete and admits so many new ones that those are open which the policy asks for
(`Oversampling`), or as many as are wanted.  Complete groups beyond those wanted count towards the
next step's batch.  It is the policy that parks the rest once enough are complete; the run ends when
every group is.

Stream: groups are admitted whenever fewer than `inflight_groups` are open; with every
`batch_groups` that are complete the trainer has a batch, and the weights change while the rest goes
on (its KV caches are computed again), or as the scenario says.  A "step" is then the time to the
next full batch.  What would be beyond the lag bound is replaced by a fresh sample.

Decisions come every `tick_s`, and soon after an end or a loss while anything waits (the live loop
is woken likewise).
"""

from collections.abc import Callable

import numpy as np

from steersman.controller.config import Config
from steersman.controller.core import Controller
from steersman.controller.replay._books import ANSWERS
from steersman.controller.replay.events import Update
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.options import Options
from steersman.controller.replay.outcome import (
    Result,
    Samples,
    StepResult,
    Totals,
    batch_result,
    step_result,
)
from steersman.controller.replay.redraw import FromWorkload
from steersman.controller.replay.ticks import Ticks
from steersman.controller.replay.workload import Asked, Workload
from steersman.controller.replay.world import World
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Ints, Objective
from steersman.policies.contract import Oversampling

__all__ = ["Options", "Result", "Samples", "StepResult", "replay"]

DEFAULTS = Options()


def replay(
    workload: Workload,
    plan: FleetPlan,
    config: Config,
    options: Options = DEFAULTS,
    after_step: Callable[[], object] = lambda: None,
) -> Result:
    """Run every step of the workload under `config`'s policy."""
    world = World(plan, FromWorkload(workload, options.seed))
    run = _Run(world, Controller.from_config(config), config, options)
    if options.inflight_groups:
        run.stream(workload, after_step)
    elif options.groups_wanted:
        run.oversampled(workload, after_step)
    else:
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
        self._ticks = Ticks(world, controller, config, options)
        self._steps = list[StepResult]()

    def step(self, asked: Asked) -> None:
        """One step of the trainer."""
        if self._steps:
            self._train(self._world.weight_version + 1)
        self._roll_out(asked.step, [asked], self._config.max_lag, groups_wanted=0)

    def oversampled(self, workload: Workload, after_step: Callable[[], object]) -> None:
        """Steps that wait for so many complete groups, whichever these are."""
        world, groups, per_batch = self._world, workload.groups(), self._options.groups_wanted
        admitted = spare = number = version = 0
        stuck = False
        while admitted < groups.count or world.open_groups:
            if number:
                self._train(version)
            wanted = min(per_batch - spare, groups.count - admitted + world.open_groups)
            new = min(max(self._to_ask(wanted) - world.open_groups, 0), groups.count - admitted)
            part = [groups.part(admitted, admitted + new, number)] if new else []
            before = world.complete_groups
            # one that parked everything must not do so for ever
            self._roll_out(number, part, 0 if stuck else self._config.max_lag, wanted)
            complete = spare + world.complete_groups - before
            stuck = not new and complete == spare
            # a batch that spare groups fill needs no step: its weights follow at once
            batches = max(complete // per_batch, 1)
            spare = max(complete - batches * per_batch, 0)
            admitted, number, version = admitted + new, number + 1, version + batches
            after_step()

    def stream(self, workload: Workload, after_batch: Callable[[], object]) -> None:
        """All groups in their order, as many open at once as the options allow."""
        world, groups = self._world, workload.groups()
        updates = _Updates(self._ticks, self._options, self._config.max_lag)
        admitted = batch = 0
        before, first, told = Totals.of(world), 0, np.zeros(0, dtype=np.int64)
        self._ticks.begin_step(0)
        while admitted < groups.count or world.open_groups:
            room = min(self._options.inflight_groups - world.open_groups, groups.count - admitted)
            if room > 0 and not updates.draining:
                world.admit(groups.part(admitted, admitted + room, batch))
                admitted += room
            self._ticks.once(
                self._config.max_lag,
                Objective.STREAM,
                self._options.batch_groups,
                placing=not updates.draining,
            )
            over = admitted == groups.count and not world.open_groups
            if over or world.complete_groups - first >= self._options.batch_groups:
                rows = np.flatnonzero(np.isin(world.ints["ending"], ANSWERS))
                new, started_s = np.setdiff1d(rows, told), self._ticks.started_s
                self._steps.append(
                    batch_result(world, batch, before, started_s, self._options.latency_s, new)
                )
                told = rows
                before, first, batch = Totals.of(world), world.complete_groups, batch + 1
                self._ticks.begin_step(batch)
                updates.batch_is_full()
                after_batch()
            updates.look()

    def drain(self) -> None:
        """Finish what is parked, without parking again."""
        if (self._world.ints["phase"] == Phase.PARKED).any():
            self._let_last_step_be_known()
            self._roll_out(self._steps[-1].step + 1, [], max_lag=0, groups_wanted=0)

    def result(self) -> Result:
        """Everything."""
        return self._ticks.result(self._steps)

    def _roll_out(self, step: int, asked: list[Asked], max_lag: int, groups_wanted: int) -> None:
        """Until everything has ended or is parked."""
        world = self._world
        before = Totals.of(world)
        self._ticks.begin_step(step)
        world.resume_parked(self._config.max_lag)
        rows: Ints = np.concatenate([*map(world.admit, asked), np.zeros(0, dtype=np.int64)])
        while world.waiting or world.running:
            self._ticks.once(max_lag, Objective.BARRIER, groups_wanted)
        started_s, latency_s = self._ticks.started_s, self._options.latency_s
        self._steps.append(step_result(world, step, before, started_s, latency_s, rows))

    def _train(self, weight_version: int) -> None:
        """Between two steps."""
        self._let_last_step_be_known()
        self._ticks.pass_time(self._world.now_s + self._options.between_steps_s)
        self._world.new_weights(weight_version)

    def _let_last_step_be_known(self) -> None:
        last = self._steps[-1]
        self._ticks.pass_time(last.start_s + last.makespan_s)

    def _to_ask(self, wanted: int) -> int:
        placement = self._controller.placement
        if isinstance(placement, Oversampling):
            return max(placement.groups_to_ask(wanted), wanted)
        return wanted


class _Updates:
    """A stream's weight updates."""

    def __init__(self, ticks: Ticks, options: Options, max_lag: int) -> None:
        self._ticks, self._weights, self._max_lag = ticks, options.scenario.weights, max_lag
        self._times = list(self._weights.at_s)
        self._version = 0
        """That the fleet shall have."""

    @property
    def draining(self) -> bool:
        """Whether an update waits for what runs."""
        return self._ticks.world.weight_version < self._version

    def batch_is_full(self) -> None:
        """The trainer trains on it."""
        if not self._weights.at_s:
            self._version += 1

    def look(self) -> None:
        """Update, if it is time and nothing has to end before."""
        world = self._ticks.world
        while self._times and self._times[0] <= world.now_s:
            del self._times[0]
            self._version += 1
        if not self.draining or (self._weights.update is Update.DRAIN and world.running):
            return
        if self._weights.update is Update.ABORT:
            world.interrupt()
        self._ticks.update_weights(self._version, self._max_lag)
