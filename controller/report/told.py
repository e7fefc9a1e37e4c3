"""What traces of live runs tell of the reporting checklist."""

from collections.abc import Mapping, Sequence

from steersman.controller.checklist import Checklist, each, length_statistics
from steersman.controller.report.summary import EDGE_STEPS, RunSummary, distinguished

PHASE = (
    "rollout only: from the request for a step to its last answer that was waited for; training, "
    "weight pushes and evaluation are not in it"
)


def checklist_of(runs: Sequence[RunSummary], told: Mapping[str, str] | None = None) -> Checklist:
    """Of live runs, the first being what the others are compared with."""
    runs = distinguished(runs)
    names = [run.policy for run in runs]
    steps = max((len(run.timed_steps) for run in runs), default=0)
    seeds = ", ".join(dict.fromkeys(run.facts.get("seed", "?") for run in runs))
    made = Checklist(
        baseline="none: a single run" if len(runs) == 1 else f"{names[0]}, the first run",
        phase=PHASE,
        unit="seconds per step; tokens of delivered answers per second of rollout",
        statistic=f"median, 90th percentile and sum over up to {steps} steps of one run each "
        f"(seed {seeds}); no interval, for one run is one sample",
        hardware=each(dict(zip(names, map(hardware_of, runs), strict=True))),
        workload=each(dict(zip(names, map(workload_of, runs), strict=True))),
        lever=each(dict(zip(names, map(lever_of, runs), strict=True))),
        quality=each(dict(zip(names, map(quality_of, runs), strict=True))),
        response_lengths=each(dict(zip(names, map(lengths_of, runs), strict=True))),
    )
    return made.told(told or {})


def hardware_of(run: RunSummary) -> str:
    """Replicas, and the machine that the controller ran on."""
    facts = run.facts
    if not facts:
        return ""
    count, slots = len(run.replicas), max(run.slots.values(), default=0)
    return (
        f"{count} replica{'s' * (count != 1)} of up to {slots} sequences, "
        f"{facts['dtype'] or 'unknown dtype'}; the controller on {facts['machine']}; steersman "
        f"{facts['steersman']} (a trace does not name accelerators)"
    )


def workload_of(run: RunSummary) -> str:
    """How much of what shape."""
    shapes = ", ".join(
        f"{count:,} groups of {size} samples of at most {cap:,} tokens"
        for (size, cap), count in sorted(run.shapes.items())
    )
    if not shapes:
        return ""
    return f"{len(run.timed_steps)} steps; {shapes}; {len(run.prompts):,} different prompts"


def lever_of(run: RunSummary) -> str:
    """What decided."""
    parts = [f"{part} {name}" for part, name in run.levers.items()] or [f"placement {run.policy}"]
    return ", ".join(parts)


def quality_of(run: RunSummary) -> str:
    """Evaluations if there were any, else the reward in training."""
    if run.qualities:
        metric, last, evaluated = run.qualities[-1]
        _, first, _ = run.qualities[0]
        on = f" on {evaluated:,} samples" if evaluated else ""
        return f"{metric} {first:.3f} at first, {last:.3f} at last{on}"
    first_reward, last_reward = run.edge_rewards()
    if first_reward is None or last_reward is None:
        return ""
    return (
        f"mean training reward {first_reward:.3f} in the first {EDGE_STEPS} steps, "
        f"{last_reward:.3f} in the last; not evaluated on held-out prompts"
    )


def lengths_of(run: RunSummary) -> str:
    """Of all answers."""
    return length_statistics(run.lengths, run.total("truncated"))
