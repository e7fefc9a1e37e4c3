"""Plots of a comparison's steps: how long they took, and how long they had to take."""

from collections.abc import Sequence

import numpy as np

from steersman.controller.replay.study import Comparison
from steersman.controller.replay.summary import makespans, step_bounds
from steersman.controller.report.charts import by_step
from steersman.controller.report.html import colour, dash
from steersman.controller.report.svg import Panel, Point, spread
from steersman.estimators.observation import Floats

LEVELS = 400
"""Points of a distribution that are drawn, at most."""
BOUNDS = {"longest_s": "longest", "work_s": "work", "average_s": "average", "memory_s": "memory"}
"""Fields of `Bounds` and what they are called."""
BOUND_DASHES = ("", "6 3", "2 2", "9 3 2 3")


def spans(comparison: Comparison) -> list[list[Floats]]:
    """[policy][imputation] (steps,) seconds; the final drain is spread over the steps."""
    return [
        [
            makespans(result, len(result.steps) if comparison.stream else len(workload.steps))
            for result, workload in zip(runs, comparison.workloads, strict=True)
        ]
        for runs in comparison.results
    ]


def step_numbers(comparison: Comparison) -> list[int]:
    """As the workload numbers them."""
    return [asked.step for asked in comparison.workloads[0].steps]


def bounds_s(comparison: Comparison) -> dict[str, Floats]:
    """(imputations, steps) seconds of each of the `BOUNDS`."""
    found = [step_bounds(workload, comparison.plan) for workload in comparison.workloads]
    return {
        text: np.array([[getattr(b, name) for b in steps] for steps in found])
        for name, text in BOUNDS.items()
    }


def distribution(comparison: Comparison) -> str:
    """Share of the steps that took at most so long."""
    every = [np.sort(np.concatenate(some)) for some in spans(comparison)]
    panel = Panel(
        spread([float(s[-1]) for s in every]),
        (0.0, 1.02),
        "Distribution of the rollout time of a step",
        "seconds",
        "share of the steps",
        y_percent=True,
    )
    for i, sorted_s in enumerate(every):
        level = np.linspace(0.0, 1.0, min(len(sorted_s), LEVELS) + 1)[1:]
        at_s = np.quantile(sorted_s, level, method="inverted_cdf")
        corners = zip(np.repeat(at_s, 2), np.append(0.0, np.repeat(level, 2)), strict=False)
        panel.curve([(float(x), float(y)) for x, y in corners], colour(i), dash(i))
    return panel.svg()


def step_times(comparison: Comparison) -> str:
    """Seconds of each step, mean over the imputations; of a stream, each batch of the first."""
    curves: list[tuple[str, Sequence[Point]]] = []
    for summary, some in zip(comparison.summaries, spans(comparison), strict=True):
        if comparison.stream:
            points = [(float(i), float(s)) for i, s in enumerate(some[0])]
            curves.append((summary.policy, points))
        else:
            curves.append((summary.policy, _points(comparison, np.mean(some, axis=0))))
    return by_step("Rollout time of each step", "seconds", curves, ".2f")


def bounds_and_achieved(comparison: Comparison) -> str:
    """What was achieved, above the four times that no scheduling can beat."""
    lower = {text: s.mean(axis=0) for text, s in bounds_s(comparison).items()}
    achieved = [np.mean(some, axis=0) for some in spans(comparison)]
    numbers = step_numbers(comparison)
    panel = Panel(
        (float(min(numbers)), float(max(max(numbers), min(numbers) + 1))),
        spread([float(y) for s in (*lower.values(), *achieved) for y in s]),
        "Rollout time of each step and its four lower bounds",
        "step",
        "seconds",
        x_whole=True,
    )
    for dashes, (text, value) in zip(BOUND_DASHES, lower.items(), strict=True):
        _add(panel, _points(comparison, value), f"bound, {text}", "bound", dashes)
    for i, (summary, value) in enumerate(zip(comparison.summaries, achieved, strict=True)):
        _add(panel, _points(comparison, value), summary.policy, colour(i), dash(i))
    return panel.svg()


def efficiency(comparison: Comparison) -> str:
    """The largest lower bound over what was achieved."""
    best = np.maximum.reduce(list(bounds_s(comparison).values()))
    curves = [
        (summary.policy, _points(comparison, (best / np.stack(some)).mean(axis=0)))
        for summary, some in zip(comparison.summaries, spans(comparison), strict=True)
    ]
    return by_step("Efficiency of each step", "bound over achieved", curves, ".1%")


def _points(comparison: Comparison, value: Floats) -> Sequence[Point]:
    numbers = step_numbers(comparison)
    return [(float(x), float(y)) for x, y in zip(numbers, value, strict=True)]


def _add(panel: Panel, points: Sequence[Point], name: str, css: str, dashes: str) -> None:
    panel.line(points, css, [f"{name}, step {x:.0f}: {y:.2f} s" for x, y in points], dashes)
