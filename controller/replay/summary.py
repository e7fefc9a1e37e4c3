"""What replays of several policies say, side by side, with what they are worth.

All policies see the same steps and the same imputed lengths.  Intervals are percentiles of a paired
bootstrap over steps (and imputations): what would come out had other steps been drawn.  They do not
cover what a profile or a length model gets wrong; `unsupported_share` tells the part of the replica
time whose load the profile was never fitted on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steersman.controller.replay.bounds import Bounds, bounds
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Result
from steersman.controller.replay.workload import Workload
from steersman.estimators.observation import Floats, Ints

DRAWS, LEVELS = 2000, (0.05, 0.95)
"""Bootstrap draws, and the interval reported: 90 %."""
TIER = "simulation"


@dataclass(frozen=True)
class Interval:
    """A figure and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PolicySummary:
    """One policy on one workload."""

    policy: str
    tier: str
    total_s: float
    """Rollout seconds of all steps, the final drain included."""
    ratio: Interval
    """`total_s` over the first policy's; below 1 is faster."""
    makespan_median_s: float
    makespan_p90_s: float
    efficiency: Interval
    """Mean over steps of the largest lower bound over what was achieved."""
    bubble_share: float
    """Of the replicas' time in steps: nothing runs there."""
    slots_used_share: float
    """Of the replicas' slots in steps: taken."""
    tokens: int
    finished: int
    truncated: int
    deferred: int
    moves: int
    stopped: int
    restarted: int
    expired: int
    discarded_tokens: int
    """Written in vain by what was restarted or expired; `tokens` are those of answers."""
    mean_length_asked: float
    mean_length_kept: float
    """Of answers in their own step: below `mean_length_asked` if long ones were put off."""
    preemptions: int
    decisions: int
    decide_ms: float
    """Mean real milliseconds of a decision, estimators included."""
    unsupported_share: float


def step_bounds(workload: Workload, plan: FleetPlan) -> list[Bounds]:
    """Of each step."""
    return [bounds(step.length, step.prompt_tokens, plan) for step in workload.steps]


def summarize(
    workloads: Sequence[Workload],
    results: Sequence[Sequence[Result]],
    plan: FleetPlan,
    seed: int = 0,
    stream: bool = False,
) -> list[PolicySummary]:
    """`results` [policy][imputation], each of the `workloads` [imputation].

    With `stream` the results' steps are not the workload's, nor the same for all policies (a
    stream's batches, steps of `groups_wanted`): they count as one long step, and one sample has no
    interval.
    """
    if stream:
        workloads = [replace(w, steps=[w.groups().whole]) for w in workloads]
        results = [[_as_one_step(run) for run in runs] for runs in results]
    spans = [
        np.stack([makespans(run, len(w.steps)) for run, w in zip(runs, workloads, strict=True)])
        for runs in results
    ]
    best = np.stack([[b.best_s for b in step_bounds(w, plan)] for w in workloads])
    drawn = draws(best.shape[1], seed)
    return [
        _policy(runs, own, spans[0], best, drawn, plan)
        for runs, own in zip(results, spans, strict=True)
    ]


COUNTS = (
    "finished", "truncated", "deferred", "moves", "stopped", "restarted", "expired", "tokens",
    "discarded_tokens",
)  # fmt: skip


def _as_one_step(run: Result) -> Result:
    first, last = run.steps[0], run.steps[-1]
    total = {name: sum(getattr(s, name) for s in run.steps) for name in ("asked", *COUNTS)}
    lengths = [s.asked * s.mean_length_asked for s in run.steps if s.asked]
    whole = replace(
        first,
        makespan_s=last.start_s + last.makespan_s - first.start_s,
        mean_length_asked=sum(lengths) / max(total["asked"], 1),
        mean_length_kept=total["tokens"] / max(total["finished"], 1),
        **total,
    )
    return replace(run, steps=[whole])


def makespans(run: Result, steps: int, first: int = 0) -> Floats:
    """(steps - first,) seconds of a run's steps from `first` on.

    The final drain is spread over them, for it is their debt.
    """
    own = np.array([step.makespan_s for step in run.steps])
    return np.asarray(own[first:steps] + own[steps:].sum() / (steps - first))


def draws(steps: int, seed: int) -> Ints:
    """(DRAWS, steps) rows of steps, drawn with replacement."""
    return np.random.default_rng(seed).integers(0, steps, (DRAWS, steps))


def paired_ratio(spans: Floats, baseline: Floats, drawn: Ints) -> Interval:
    """Seconds over the baseline's; both are (imputations, steps), resampled together."""
    ratios = spans.mean(axis=0)[drawn].sum(axis=1) / baseline.mean(axis=0)[drawn].sum(axis=1)
    return _interval(float(spans.sum() / baseline.sum()), ratios)


def _policy(
    runs: Sequence[Result],
    spans: Floats,
    baseline: Floats,
    best: Floats,
    drawn: Ints,
    plan: FleetPlan,
) -> PolicySummary:
    efficiency = (best / spans).mean(axis=0)
    steps = [step for run in runs for step in run.steps]
    shares = np.mean([_shares(run, plan) for run in runs], axis=0)
    count = len(runs)
    kept = [s for s in steps if s.asked and np.isfinite(s.mean_length_kept)]
    asked = [s for s in steps if s.asked]
    return PolicySummary(
        policy=runs[0].policy,
        tier=TIER,
        total_s=float(spans.sum(axis=1).mean()),
        ratio=paired_ratio(spans, baseline, drawn),
        makespan_median_s=float(np.median(spans)),
        makespan_p90_s=float(np.quantile(spans, 0.9)),
        efficiency=_interval(float(efficiency.mean()), efficiency[drawn].mean(axis=1)),
        bubble_share=float(shares[0]),
        slots_used_share=float(shares[1]),
        **{name: sum(getattr(s, name) for s in steps) // count for name in COUNTS},
        mean_length_asked=float(np.mean([s.mean_length_asked for s in asked])),
        mean_length_kept=float(np.mean([s.mean_length_kept for s in kept])),
        preemptions=sum(run.preemptions for run in runs) // count,
        decisions=sum(run.decisions for run in runs) // count,
        decide_ms=1e3 * sum(r.decide_s for r in runs) / max(sum(r.decisions for r in runs), 1),
        unsupported_share=float(np.mean([run.unsupported for run in runs])),
    )


def _interval(value: float, draws: Floats) -> Interval:
    low, high = np.quantile(draws, LEVELS).tolist()
    return Interval(value, low, high)


def _shares(run: Result, plan: FleetPlan) -> tuple[float, float]:
    """Share of the replicas' time in steps without work, and of their slots that were taken."""
    if len(run.samples.time_s) < 2:
        return 0.0, 0.0
    time_s, running = np.array(run.samples.time_s), np.stack(run.samples.running)
    ends = np.array([s.start_s + s.makespan_s for s in run.steps])
    starts = np.array([s.start_s for s in run.steps])
    until = ends[np.searchsorted(starts, time_s, side="right") - 1]
    held = np.clip(np.minimum(np.append(time_s[1:], until[-1]), until) - time_s, 0.0, None)[:, None]
    alive = np.stack(run.samples.alive)
    total = max(float((held * alive).sum()), 1e-9)
    idle = float((held * (alive & (running == 0))).sum())
    slots = max(float((held * alive * plan.slots).sum()), 1e-9)
    return idle / total, float((held * running).sum()) / slots
