"""The report's charts, as SVG text: one function each."""

import math
from collections.abc import Sequence

from steersman.controller.report.html import colour, dash
from steersman.controller.report.summary import RunSummary
from steersman.controller.report.svg import Panel, Point, spread

Curves = Sequence[tuple[str, Sequence[Point]]]
"""Name, (step, value) points."""
BINS = 24


def by_step(title: str, y_label: str, curves: Curves, form: str) -> str:
    """One line per run over the steps, from 0 up; `form` formats the tooltips' values."""
    numbers = [int(step) for _, points in curves for step, _ in points] or [0]
    panel = Panel(
        (float(min(numbers)), float(max(max(numbers), min(numbers) + 1))),
        spread([0.0, *(y for _, points in curves for _, y in points)]),
        title,
        "step",
        y_label,
        x_whole=True,
        y_percent="%" in form,
    )
    for i, (name, points) in enumerate(curves):
        tips = [f"{name}, step {x:.0f}: {y:{form}}" for x, y in points]
        panel.line(points, colour(i), tips, dash(i))
    return panel.svg()


def step_times(runs: Sequence[RunSummary]) -> str:
    """Seconds of each step."""
    curves = [(r.policy, [(float(s.step), s.seconds) for s in r.timed_steps]) for r in runs]
    return by_step("Rollout time of each step", "seconds", curves, ".2f")


def rewards(runs: Sequence[RunSummary]) -> str:
    """Mean reward of each step; a gap where nothing was delivered."""
    curves = [(r.policy, [(float(s.step), _or_nan(s.reward)) for s in r.timed_steps]) for r in runs]
    return by_step("Mean reward of each step", "mean reward", curves, ".3f")


def accepted_per_draft(runs: Sequence[RunSummary]) -> str:
    """Tokens accepted per draft in each step; a gap where nothing was drafted."""
    curves = [
        (r.policy, [(float(s.step), _or_nan(s.accepted_per_draft)) for s in r.timed_steps])
        for r in runs
    ]
    return by_step("Tokens accepted per draft", "tokens", curves, ".2f")


def lengths(runs: Sequence[RunSummary]) -> str:
    """Histogram of the answers' lengths, as shares, so that runs of any size compare."""
    longest = max((length for run in runs for length in run.lengths), default=0)
    width = max(math.ceil((longest + 1) / BINS), 1)
    shares = [_shares(run.lengths, width) for run in runs]
    panel = Panel(
        (0.0, float(width * BINS)),
        spread([share for row in shares for share in row]),
        "Length of the answers",
        "tokens",
        "share of the answers",
        y_percent=True,
    )
    for i, (run, row) in enumerate(zip(runs, shares, strict=True)):
        outline = [
            (float(edge * width), share)
            for bin_, share in enumerate(row)
            for edge in (bin_, bin_ + 1)
        ]
        panel.area(outline, colour(i), dash(i))
        if run.lengths:
            mean = sum(run.lengths) / len(run.lengths)
            panel.mark(mean, panel.y[1] * 0.02, 5, f"dot {colour(i)}")
    return panel.svg()


def busiest_step(runs: Sequence[RunSummary]) -> int | None:
    """The step in which most was moved and deferred, or the slowest one where nothing was."""
    steps = [step for run in runs for step in run.timed_steps]
    if not steps:
        return None
    return max(steps, key=lambda s: (s.migrated + s.deferred, s.seconds)).step


def _shares(values: list[int], width: int) -> list[float]:
    counts = [0] * BINS
    for value in values:
        counts[min(value // width, BINS - 1)] += 1
    return [count / max(len(values), 1) for count in counts]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
