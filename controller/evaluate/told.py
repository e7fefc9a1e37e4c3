"""The reporting checklist of a study: what its logs say, and what the evaluation itself adds."""

from collections.abc import Mapping

import numpy as np

from steersman.controller.checklist import ITEMS, Checklist
from steersman.controller.evaluate.study import AXES, Study


def checklist_of(study: Study, baseline: str, told: Mapping[str, str]) -> Checklist:
    """`told` stands over the logs' headers, and these over what is concluded here."""
    header = {k: str(v) for k, v in study.header.items() if k in ITEMS and str(v).strip()}
    units = ", ".join(AXES[axis] for axis in study.axes())
    made = Checklist(
        baseline=f"{baseline}, an arm of the same study",
        phase="from the run's first step to each evaluation; what a cost contains is what its log "
        "counts",
        unit=f"cost to reach a quality, C(q), in {units}",
        statistic=_statistic(study),
        workload=_workload(study),
        lever=f"arms {', '.join(study.arms)}",
        quality=_quality(study),
        response_lengths=_lengths(study),
    )
    return made.told(header).told(told)


def _statistic(study: Study) -> str:
    seeds = {arm: len(study.arm(arm)) for arm in study.arms}
    return (
        "isotonic curve per run; geometric mean over seeds of ratios paired by seed, Student's "
        "95 % interval; runs that miss a quality count with their budget; "
        f"seeds: {', '.join(f'{arm} {n}' for arm, n in seeds.items())}"
    )


def _workload(study: Study) -> str:
    steps = [run.step[-1] - run.step[0] for run in study.every()]
    tokens = [run.tokens[-1] for run in study.every()]
    text = f"{len(study.every())} runs of {min(steps):,.0f} to {max(steps):,.0f} steps"
    if np.isfinite(tokens).all():
        text += f", {min(tokens):,.0f} to {max(tokens):,.0f} tokens each"
    return f"{text}; the logs do not name the task"


def _quality(study: Study) -> str:
    metric = str(study.header.get("metric", "quality"))
    counts = {int(n) for run in study.every() for n in run.evaluated}
    on = (
        "on an unknown number of samples"
        if 0 in counts
        else f"on {min(counts):,} samples"
        if len(counts) == 1
        else f"on {min(counts):,} to {max(counts):,} samples"
    )
    ends = ", ".join(
        f"{arm} {np.mean([run.quality[-1] for run in study.arm(arm).values()]):.3f}"
        for arm in study.arms
    )
    return f"{metric}, {on} each time; at the end, mean over seeds: {ends}"


def _lengths(study: Study) -> str:
    """As far as the logs' extras tell."""
    said = []
    for arm in study.arms:
        runs = list(study.arm(arm).values())
        parts = []
        for name, text, form in (
            ("mean_length", "mean {} tokens", ",.0f"),
            ("truncated_share", "{} at the token cap", ".1%"),
        ):
            known = [run.extras[name] for run in runs if name in run.extras]
            every = np.concatenate(known) if known else np.array([np.nan])
            if np.isfinite(every).any():
                parts.append(text.format(format(float(np.nanmean(every)), form)))
        if parts:
            said.append(f"{arm}: {', '.join(parts)}")
    return "; ".join(said)
