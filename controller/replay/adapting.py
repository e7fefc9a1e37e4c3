"""A profile scaled to a run: as fast as that run's own steps were.

Tables of kernels and idle fleets do not know what else a run's machines do: the trainer's driver,
its reward workers, its neighbours, a clock that throttles.  Where a trace tells how long its steps
took, one factor on all the profile's times makes up for that: the median of taken over replayed
time of every other step, found again until it stands still.  The steps between, which it has not
seen, tell how far a replay with the profile is to be trusted.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from steersman.controller.calibration.steps import Plan
from steersman.controller.config import Config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import replay
from steersman.controller.replay.sources import TRACES, load_workload
from steersman.controller.replay.workload import Workload
from steersman.controller.trace import records
from steersman.controller.trace.reader import read
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Objective
from steersman.mechanisms.simulated.profile import HardwareProfile

BARRIER = Objective.BARRIER.value
FEW = records.RunStarted | records.StepStarted | records.StepEnded
"""Records that are looked at; the others of a long run need not fit in memory."""
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
    told = [record for record in read(path) if isinstance(record, FEW)]
    if any(r.objective != BARRIER for r in told if isinstance(r, records.StepStarted)):
        raise InvalidInputError(f"{path} has steps that are streams; valid: steps with a barrier")
    # by number: a step that only resumed what was parked is not one of the workload's
    took_s = {r.step: r.seconds for r in told if isinstance(r, records.StepEnded)}
    numbers = [asked.step for asked in workload.steps]
    known = [number for number in numbers if took_s.get(number, 0.0) > 0]
    if len(known) < len(numbers) or not known:
        raise InvalidInputError(
            f"{path} tells the seconds of {len(known)} of {len(numbers)} steps; valid: a trace of "
            "steps that have ended"
        )
    started = next(r for r in told if isinstance(r, records.RunStarted))
    plan = FleetPlan(profile, len(started.replicas), pools=[r.pool for r in started.replicas])
    return scaled(workload, np.array([took_s[n] for n in numbers]), plan, _acted(path, started))


def _acted(path: Path, started: records.RunStarted) -> Config:
    """The run's configuration, its policies those that acted: unless it enforced its own, the
    fallback alone."""
    try:
        config = msgspec.convert(started.config, Config)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{path}: its configuration is not valid here: {error}") from error
    if config.mode == "enforce":
        return config
    idle = Config()
    return msgspec.structs.replace(
        config, placement=config.fallback, stopping=idle.stopping, speculation=idle.speculation
    )


def scaled(workload: Workload, took_s: Floats, plan: FleetPlan, config: Config) -> Adapted:
    """The plan's profile scaled to a workload whose steps took (s,) seconds each."""
    profile, factor = plan.profile, 1.0
    fitted, held_out = slice(0, None, 2), slice(1, None, 2)
    for _ in range(PASSES):
        ratio = took_s / _spans(workload, plan, profile, config)
        own = float(np.median(ratio[fitted]))
        profile, factor = profile.slowed(own), factor * own
    error = np.abs(_spans(workload, plan, profile, config) / took_s - 1)[held_out]
    told = f"times x {factor:.3f}, as {len(took_s[fitted])} steps of a run took"
    return Adapted(
        profile=replace(profile, source=f"{profile.source}; {told}" if profile.source else told),
        factor=factor,
        fitted_steps=len(took_s[fitted]),
        held_out_steps=len(error),
        error_median=float(np.median(error)) if len(error) else float("nan"),
    )


def _spans(workload: Workload, plan: FleetPlan, profile: HardwareProfile, config: Config) -> Floats:
    """(s,) seconds of each step, a final drain left out."""
    run = replay(workload, replace(plan, profile=profile), config)
    return np.array([step.makespan_s for step in run.steps[: len(workload.steps)]])
