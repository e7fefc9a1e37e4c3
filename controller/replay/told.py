"""What a replay tells of the reporting checklist."""

from collections.abc import Mapping, Sequence

import numpy as np

from steersman.controller.checklist import Checklist, length_statistics
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.study import Comparison
from steersman.controller.replay.workload import Workload

PHASE = (
    "rollout only, simulated: from the request for a step to its last answer that was waited for; "
    "training and weight pushes take no time unless a scenario says so"
)


def checklist_of(c: Comparison, told: Mapping[str, str] | None = None) -> Checklist:
    """Of policies on one workload."""
    names = [summary.policy for summary in c.summaries]
    workload = c.workloads[0]
    draws = len(c.workloads)
    cut = f"; means of {draws} draws of the lengths that the log had cut off" if draws > 1 else ""
    interval = "no interval: one sample" if c.stream or len(workload.steps) == 1 else (
        "intervals 90 %, over steps and imputations"
    )  # fmt: skip
    made = Checklist(
        baseline=f"{names[0]}, the first policy" if len(names) > 1 else "none: a single policy",
        phase=PHASE,
        unit="seconds of rollout, at the same answers for every policy",
        statistic=f"sum, median and 90th percentile over steps{cut}; {interval}",
        hardware=hardware_of(c.plan),
        workload=workload_of(workload),
        lever=f"placement: {', '.join(names)}",
        quality=quality_of(workload),
        response_lengths=lengths_of([workload]),
    )
    return made.told(told or {})


def hardware_of(plan: FleetPlan) -> str:
    """Simulated replicas, by their profiles."""
    each = "; ".join(
        f"{p.name}: {p.tensor_parallel} x {p.gpu}, {p.model}, {p.max_num_seqs} slots"
        for p in dict.fromkeys(plan.each)
    )
    return f"simulated: {plan.described} ({each})"


def workload_of(workload: Workload) -> str:
    """How much of what."""
    groups = sum(len(step.prompt_key) for step in workload.steps)
    prompts = len(np.unique(np.concatenate([step.prompt_key for step in workload.steps])))
    caps = np.concatenate([step.max_new_tokens for step in workload.steps])
    turns = max(int(step.turns.count.max()) for step in workload.steps if len(step))
    several = f", up to {turns} turns" if turns > 1 else ", single-turn"
    return (
        f"{len(workload.steps)} steps, {groups:,} groups, {workload.trajectories:,} trajectories "
        f"of {prompts:,} prompts{several}, token cap up to {int(caps.max()):,}"
    )


def quality_of(workload: Workload) -> str:
    """A replay trains nothing."""
    rewards = np.concatenate([step.reward for step in workload.steps])
    known = rewards[np.isfinite(rewards)]
    mean = f"; mean reward in the log {known.mean():.3f}" if len(known) else ""
    return f"none: a replay moves recorded answers and trains nothing{mean}"


def lengths_of(workloads: Sequence[Workload]) -> str:
    """Of what was asked for."""
    steps = [step for workload in workloads for step in workload.steps]
    lengths = np.concatenate([step.length for step in steps])
    at_cap = sum(int(step.truncated.sum()) for step in steps)
    return length_statistics(lengths.tolist(), at_cap)
