"""A replay under a controller of the test's own, one step after another, that shows every tick."""

from collections.abc import Callable, Sequence

import numpy as np

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.options import Options
from steersman.controller.replay.outcome import Totals, step_result
from steersman.controller.replay.redraw import FromWorkload
from steersman.controller.replay.ticks import Ticks
from steersman.controller.replay.workload import Workload
from steersman.controller.replay.world import World
from steersman.estimators.observation import Floats, Objective


def steered(
    workload: Workload,
    plan: FleetPlan,
    controller: Controller,
    tick_s: float = 1.0,
    overrides: Sequence[str] = (),
    after_tick: Callable[[World], object] = lambda world: None,
    max_lag: int = 0,
) -> Floats:
    """(steps,) seconds that each step took."""
    config = load_config(None, [f"tick_s={tick_s}", *overrides], environ={})
    world = World(plan, FromWorkload(workload, 0))
    ticks = Ticks(world, controller, config, Options())
    taken = []
    for number, asked in enumerate(workload.steps):
        before = Totals.of(world)
        ticks.begin_step(number)
        world.resume_parked(max_lag)
        rows = world.admit(asked)
        while world.waiting or world.running:
            ticks.once(max_lag, Objective.BARRIER, 0)
            after_tick(world)
        result = step_result(world, number, before, ticks.started_s, 0.0, rows)
        taken.append(result.makespan_s)
        ticks.pass_time(result.start_s + result.makespan_s)
        world.new_weights(number + 1)
    return np.array(taken)
