"""Rounds of groups on a simulated fleet; a group gets its further samples when its own have ended.

The live controller's `decide` places them, as in a replay.  Further samples are admitted at the
next decision after the group's last end, so up to `tick_s` late.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from steersman.controller.config import Config
from steersman.controller.core import Controller
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.options import Options
from steersman.controller.replay.outcome import Result, StepResult, Totals, step_result
from steersman.controller.replay.redraw import FromWorkload
from steersman.controller.replay.ticks import Ticks
from steersman.controller.replay.workload import Asked, Workload
from steersman.controller.replay.world import World
from steersman.estimators.observation import Ints, Objective

NOTHING_IS_PUT_OFF = 0
"""The lag bound: a sample that is parked until new weights would be missing in its round."""


@dataclass(frozen=True)
class Round:
    """Groups that are asked for at once, and what is added to them."""

    trainer_step: int
    asked: Asked
    """All samples, sorted by group."""
    stage: Ints
    """(n,) 0: asked for when the round begins; k: when the group's samples of stage k - 1 have
    ended."""


def rolled_out(rounds: Sequence[Round], plan: FleetPlan, config: Config) -> Result:
    """One round after another, each a step of the result."""
    config = msgspec.structs.replace(config, max_lag=NOTHING_IS_PUT_OFF)
    options = Options(seed=config.seed)
    world = World(plan, FromWorkload(Workload([each.asked for each in rounds]), config.seed))
    ticks = Ticks(world, Controller.from_config(config), config, options)
    steps: list[StepResult] = []
    for each in rounds:
        if steps:
            ticks.pass_time(steps[-1].start_s + steps[-1].makespan_s)
        if each.trainer_step > world.weight_version:
            ticks.update_weights(each.trainer_step, NOTHING_IS_PUT_OFF)
        steps.append(_round(each, len(steps), world, ticks, options.latency_s))
    return ticks.result(steps)


def _round(each: Round, number: int, world: World, ticks: Ticks, latency_s: float) -> StepResult:
    before, first = Totals.of(world), world.books.groups
    ticks.begin_step(number)
    rows = [world.admit(each.asked.of(np.flatnonzero(each.stage == 0)))]
    later = _later(each)
    while world.waiting or world.running or later:
        ticks.once(NOTHING_IS_PUT_OFF, Objective.BARRIER, groups_wanted=0)
        is_open = world.books.is_open[first:]
        due = [group for group in later if not is_open[group]]
        if due:
            more = np.concatenate([later[group].pop(0) for group in due])
            rows.append(world.extend(first + each.asked.group_row[more], each.asked.of(more)))
            later = {group: left for group, left in later.items() if left}
    return step_result(world, number, before, ticks.started_s, latency_s, np.concatenate(rows))


def _later(each: Round) -> dict[int, list[Ints]]:
    """By group: the rows of each further stage."""
    group, stage = each.asked.group_row, each.stage
    found: dict[int, list[Ints]] = {}
    for row in np.unique(group[stage > 0]).tolist():
        own = np.flatnonzero(group == row)
        found[row] = [own[stage[own] == k] for k in range(1, int(stage[own].max()) + 1)]
    return found
