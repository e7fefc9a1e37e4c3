"""A profile scaled to a run: as fast as that run's own steps were.

Tables of kernels and idle fleets do not know what else a run's machines do: the trainer's driver,
its reward workers, its neighbours, a clock that throttles.  Where a trace tells how long its steps
took, one factor on all the profile's times makes up for that: the median of taken over replayed
time of every other step, found again until it stands still.  The steps between, which it has not
seen, tell how far a replay with the profile is to be trusted.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steersman.controller.calibration.steps import Plan
from steersman.controller.config import Config, load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import replay
from steersman.controller.replay.sources import TRACES, load_workload
from steersman.controller.replay.workload import Workload
from steersman.controller.trace import records
from steersman.controller.trace.reader import read
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats
from steersman.mechanisms.simulated.profile import HardwareProfile

PASSES = 4
"""A step's time is not quite proportional to the profile's: the remaining error shrinks tenfold a
pass."""


@dataclass(frozen=True)
class Adapted:
    """The outcome."""

    profile: HardwareProfile
    factor: float
    """On every time of the profile; above 1: the run was slower."""
    fitted_steps: int
    held_out_steps: int
    error_median: float
    """Of |replayed / taken - 1| over the steps held out; NaN: there were none."""


def adapt(path: Path, profile: HardwareProfile) -> Adapted:
    """Scale `profile` to a trace."""
    if not path.name.endswith(TRACES):
        raise InvalidInputError(f"{path}: only a trace (.jsonl) tells how long its steps took")
    workload = load_workload(path, Plan())
    told = list(read(path))
    took_s = np.array([r.seconds for r in told if isinstance(r, records.StepEnded)])
    started = next(r for r in told if isinstance(r, records.RunStarted))
    if len(took_s) < len(workload.steps) or not len(took_s):
        raise InvalidInputError(
            f"{path} tells the seconds of {len(took_s)} of {len(workload.steps)} steps; valid: a "
            "trace of steps that have ended"
        )
    part = started.config["placement"]
    named = [f"placement.options.{key}={value}" for key, value in part["options"].items()]
    config = load_config(None, [f"placement.name={part['name']}", *named], environ={})
    plan = FleetPlan(profile, len(started.replicas))
    return scaled(workload, took_s[: len(workload.steps)], plan, config)


def scaled(workload: Workload, took_s: Floats, plan: FleetPlan, config: Config) -> Adapted:
    """The plan's profile scaled to a workload whose steps took (s,) seconds each."""
    profile, factor = plan.profile, 1.0
    fitted, held_out = slice(0, None, 2), slice(1, None, 2)
    for _ in range(PASSES):
        ratio = took_s / _spans(workload, plan, profile, config)
        own = float(np.median(ratio[fitted]))
        profile, factor = profile.slowed(own), factor * own
    error = np.abs(_spans(workload, plan, profile, config) / took_s - 1)[held_out]
    return Adapted(
        profile=profile,
        factor=factor,
        fitted_steps=len(took_s[fitted]),
        held_out_steps=len(error),
        error_median=float(np.median(error)) if len(error) else float("nan"),
    )


def _spans(workload: Workload, plan: FleetPlan, profile: HardwareProfile, config: Config) -> Floats:
    """(s,) seconds of each step, a final drain left out."""
    run = replay(workload, replace(plan, profile=profile), config)
    return np.array([step.makespan_s for step in run.steps[: len(workload.steps)]])
