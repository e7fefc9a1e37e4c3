"""One step of a replay as the report's charts take it: its load over time, and its attempts."""

import numpy as np

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.intervals import ENDINGS
from steersman.controller.replay.run import Result, StepResult
from steersman.controller.replay.workload import Workload
from steersman.controller.report.load import Load, load_of
from steersman.controller.report.summary import Bar


def slowest_step(results: list[Result]) -> int:
    """Number of the step that took longest under any policy; the final drain does not count."""
    steps = [step for result in results for step in result.steps if step.asked]
    return max(steps, key=lambda step: step.makespan_s).step


def find_step(result: Result, number: int) -> StepResult | None:
    """The step of that number; only a stream's batches may be fewer under another policy."""
    return next((step for step in result.steps if step.step == number), None)


def replay_load(result: Result, step: StepResult, bars: list[Bar], plan: FleetPlan) -> Load:
    """What the fleet carried during `step`; the KV cache as every decision saw it."""
    span_s = (step.start_s, step.start_s + step.makespan_s)
    time_s = np.array(result.samples.time_s)
    usage = np.stack(result.samples.kv_cache_usage)
    kv_usage = {name: (time_s, usage[:, row]) for row, name in enumerate(plan.names)}
    slots = dict(zip(plan.names, plan.slots.tolist(), strict=True))
    return load_of(bars, slots, span_s, kv_usage)


def replay_bars(result: Result, step: StepResult, workload: Workload, plan: FleetPlan) -> list[Bar]:
    """The attempts that ran in `step`."""
    a = result.attempts
    ran = (a.start_s < step.start_s + step.makespan_s) & (a.end_s > step.start_s)
    return [
        Bar(
            trajectory_id=int(a.trajectory[k]),
            replica=plan.names[int(a.replica[k])],
            start_s=float(a.start_s[k]),
            prefix_tokens=int(result.prompt_tokens[a.trajectory[k]] + a.first_token[k]),
            end_s=float(a.end_s[k]),
            tokens=int(a.last_token[k] - a.first_token[k]),
            ending=ENDINGS[int(a.ending[k])],
        )
        for k in np.flatnonzero(ran)
    ]
