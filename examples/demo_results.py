"""What a run of `steersman demo` shows: the table, the page, and what reaching a quality cost.

Costs of a quality come from the traces, as `steersman evaluate` reads them: all tokens that the
engines wrote count, those of groups that a prompt policy filtered included.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steersman.controller.report.summary import RunSummary
    from steersman.examples.signs.reinforce import RunReport

REWARD_STEPS = 3
"""Steps averaged into the first and last reward; one step's mean has a standard error of .04."""
TARGETS = (0.50, 0.55, 0.60, 0.65, 0.70)
"""Shares of held-out problems solved; the pretrained model starts near .45."""


def results(
    reports: Sequence["RunReport"],
    traces: Mapping[str, Path],
    told: Mapping[str, str],
    curves: bool,
) -> dict[str, Any]:
    """All figures by run; with `curves` what the targets cost, as far as they were reached."""
    from steersman.controller.report.told import checklist_of

    found = {report.arm: summarize(report) for report in reports}
    if curves:
        for name, path in traces.items():
            found[name] |= tokens_to_targets(name, path)
    checklist = checklist_of(summaries(traces.values()), told)
    return {"policies": found, "checklist": checklist.as_dict()}


def tokens_to_targets(name: str, trace: Path) -> dict[str, float | None]:
    """C(q) of one run, in tokens; None: not reached.  One seed: no interval."""
    import numpy as np

    from steersman.controller.evaluate.reading import read

    (run,) = read([f"{name}={trace}"]).arm(name).values()
    costs = run.curves["tokens"].cost_of(np.array(TARGETS))
    return {
        f"tokens_to_{target:.2f}": round(cost) if math.isfinite(cost) else None
        for target, cost in zip(TARGETS, costs.tolist(), strict=True)
    }


def summarize(report: "RunReport") -> dict[str, Any]:
    """The figures of one run; times are seconds, lengths are tokens."""
    times = sorted(step.seconds for step in report.steps)
    rewards = [step.reward for step in report.steps if step.reward == step.reward]
    lengths = [len(t.token_ids) for t in report.trajectories]
    return {
        "reward_first": round(statistics.fmean(rewards[:REWARD_STEPS]), 4),
        "reward_last": round(statistics.fmean(rewards[-REWARD_STEPS:]), 4),
        "held_out_first": round(report.held_out_first, 4),
        "held_out_last": round(report.held_out_last, 4),
        "tokens": sum(lengths) + report.filtered_tokens,
        "filtered_tokens": report.filtered_tokens,
        "step_s_p50": round(_quantile(times, 0.5), 3),
        "step_s_p90": round(_quantile(times, 0.9), 3),
        "rollout_s_p50": round(_quantile(sorted(s.rollout_s for s in report.steps), 0.5), 3),
        "total_s": round(report.total_s, 1),
        "finished": sum(t.finished for t in report.trajectories),
        "truncated": sum(not t.finished for t in report.trajectories),
        "deferred": report.deferred,
        "migrated": report.migrated,
        "degenerate_share": round(
            statistics.fmean(step.degenerate_share for step in report.steps), 3
        ),
        "rewards": [round(step.reward, 4) for step in report.steps],
        "mean_length_kept": round(statistics.fmean(report.on_time_lengths or [0]), 2),
        "mean_length_asked": round(statistics.fmean(lengths or [0]), 2),
        "logprob_difference_max": max(step.logprob_difference for step in report.steps),
        "lost": report.lost,
        "doubled": report.doubled,
    }


def _quantile(ordered: list[float], q: float) -> float:
    """Nearest-rank quantile."""
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def print_table(policies: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="steersman demo", title_justify="left")
    table.add_column("")
    for name in policies:
        table.add_column(name, justify="right")
    for figure in next(iter(policies.values())):
        if figure != "rewards":  # the page draws them
            table.add_row(figure, *(_text(row[figure]) for row in policies.values()))
    Console().print(table)


def _text(figure: float | None) -> str:
    return "not reached" if figure is None else f"{figure:g}"


def write_report(file: Path, traces: Sequence[Path], told: Mapping[str, str]) -> None:
    """The page of all runs."""
    from steersman.controller.report import write_report as write

    write(file, summaries(traces), told)


def summaries(traces: Iterable[Path]) -> list["RunSummary"]:
    """What each trace says."""
    from steersman.controller.report import summarize as summarize_trace
    from steersman.controller.trace.reader import read

    return [summarize_trace(read(path)) for path in traces]
