"""Pictures of a study: quality over cost, and intervals under each other."""

import math
from collections.abc import Sequence

import numpy as np

from steersman.controller.evaluate.costs import FLOOR
from steersman.controller.evaluate.resampling import expanded, redrawn_costs, resampled_means
from steersman.controller.evaluate.study import AXES, Study
from steersman.controller.report.html import colour, dash
from steersman.controller.report.svg import Panel, Point
from steersman.estimators.observation import Floats

LEVELS = 60
"""Qualities at which a curve is drawn."""
SEED = 0
"""Of the bands' draws: the same study gives the same page."""
WIDTH, HEIGHT = 1040, 330


def quality_over_cost(
    study: Study, axis: str, arms: Sequence[str], targets: Sequence[float]
) -> str:
    """C(q) of each arm as a curve with its band: mean over seeds (geometric), as far as all runs
    get; the targets as lines across."""
    runs = study.every(arms)
    lowest = min(float(run.curves[axis].quality[0]) for run in runs)
    highest = max(float(run.curves[axis].quality[-1]) for run in runs)
    level = np.linspace(lowest, highest, LEVELS)
    longest = max(run.curves[axis].budget for run in runs)
    room = 0.05 * (highest - lowest or 1.0)
    panel = Panel(
        (0.0, 1.02 * longest), (lowest - room, highest + room), f"Quality over {AXES[axis]}",
        AXES[axis], "quality", width=WIDTH, height=HEIGHT,
    )  # fmt: skip
    for target in targets:
        panel.across(target, f"{target:g}")
    drawn = []
    for i, arm in enumerate(arms):
        middle, low, high = _band(study, axis, arm, level, i)
        kept = np.isfinite(middle)
        rows = list(zip(level[kept], low[kept], high[kept], strict=True))
        panel.between(
            [(float(x), float(q)) for q, x, _ in rows],
            [(float(x), float(q)) for q, _, x in rows],
            colour(i),
        )
        drawn.append([(float(x), float(q)) for x, q in zip(middle[kept], level[kept], strict=True)])
    for i, points in enumerate(drawn):
        panel.curve(points, colour(i), dash(i))
    return panel.svg()


def _band(
    study: Study, axis: str, arm: str, level: Floats, number: int
) -> tuple[Floats, Floats, Floats]:
    """(levels,) C(q) and its band; NaN where not every run gets."""
    runs = list(study.arm(arm).values())
    rng = np.random.default_rng((SEED, number))
    limit = np.array([run.curves[axis].budget for run in runs])
    least = FLOOR * float(limit.max())
    found = np.stack([run.curves[axis].cost_of(level) for run in runs])
    all_there = np.isfinite(found).all(axis=0)
    middle = np.exp(np.log(np.maximum(np.minimum(found, limit[:, None]), least)).mean(axis=0))
    redrawn = [
        np.log(np.clip(redrawn_costs(run, axis, level, rng), least, run.curves[axis].budget))
        for run in runs
    ]
    low, high = expanded(resampled_means(redrawn, rng), len(runs))
    return np.where(all_there, middle, math.nan), np.exp(low), np.exp(high)


def intervals(
    title: str,
    label: str,
    rows: Sequence[tuple[str, float, float, float]],
    mark: float,
    mark_text: str,
) -> str:
    """Names with (middle, low, high), one under the other; an upright line at `mark`."""
    values = [v for _, *each in rows for v in each if math.isfinite(v)] + [mark]
    room = 0.08 * ((max(values) - min(values)) or 1.0)
    count = len(rows)
    longest = max((len(name) for name, *_ in rows), default=0)
    panel = Panel(
        (min(values) - room, max(values) + room), (count - 0.1, -0.6), title, label,
        width=WIDTH, height=70 + 30 * count, left=min(90 + 5 * longest, 420),
        y_ticks=[(float(i), name) for i, (name, *_) in enumerate(rows)],
    )  # fmt: skip
    panel.upright(mark, mark_text)
    for i, (name, middle, low, high) in enumerate(rows):
        if math.isfinite(low):
            tip = f"{name}: {middle:.3f}, 95 % {low:.3f} to {high:.3f}"
            panel.bar(low, high, float(i), 4.0, "interval", tip)
        panel.mark(middle, float(i), 6.0, f"dot {colour(0)}")
    return panel.svg()


def over_points(
    title: str,
    x_label: str,
    y_label: str,
    curves: Sequence[tuple[int, str, Sequence[tuple[float, float, float, float]]]],
    mark: float | None = None,
    bands: bool = False,
) -> str:
    """Colours, names and (x, middle, low, high): lines with whiskers, or bands; a line across at
    `mark`."""
    points = [point for *_, some in curves for point in some]
    ys = [v for _, *each in points for v in each if math.isfinite(v)]
    ys += [] if mark is None else [mark]
    xs = [x for x, *_ in points]
    room = 0.06 * ((max(ys) - min(ys)) or 1.0)
    span = (max(xs) - min(xs)) or 1.0
    whole = all(x == round(x) for x in xs)
    panel = Panel(
        (min(xs) - 0.04 * span, max(xs) + 0.04 * span), (min(ys) - room, max(ys) + room),
        title, x_label, y_label, width=WIDTH, height=HEIGHT, left=70, x_whole=whole,
    )  # fmt: skip
    if mark is not None:
        panel.across(mark, f"{mark:g}")
    for i, name, some in curves:
        known = [(x, low, high) for x, _, low, high in some if math.isfinite(low)]
        if bands:
            lower, upper = ([(row[0], row[k]) for row in known] for k in (1, 2))
            panel.between(lower, upper, colour(i))
        else:
            for x, low, high in known:
                panel.curve([(x, low), (x, high)], f"whisker {colour(i)}")
        drawn: list[Point] = [(x, y) for x, y, _, _ in some]
        panel.line(drawn, colour(i), [f"{name}: {y:.3f}" for _, y in drawn], dash(i))
    return panel.svg()
