"""Matched-cost quality: how good each arm is when all have spent the same.

The other reading of the same curves: not what a quality costs, but what a cost buys.  It has an
answer even where no run reaches a target, and it cannot be improved by stopping early.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from steersman.controller.evaluate.answer import (
    Answer,
    Picture,
    Table,
    amount,
    bars,
    interval_figures,
    interval_text,
)
from steersman.controller.evaluate.curves import cautions
from steersman.controller.evaluate.paired import Interval, student
from steersman.controller.evaluate.plots import intervals
from steersman.controller.evaluate.study import AXES, Study
from steersman.estimators.errors import InvalidInputError

SHARES = (1 / 3, 2 / 3, 1.0)
"""Default costs, as shares of what every run spent."""


def matched(
    study: Study,
    baseline: str | None = None,
    at: Sequence[float] = (),
    axes: Sequence[str] = (),
) -> Answer:
    """Quality at equal cost."""
    base = study.arms[0] if baseline is None else baseline
    study.arm(base)
    tables, pictures, said = [], [], []
    figures: dict[str, Any] = {"baseline": base, "axes": {}}
    others = [arm for arm in study.arms if arm != base]
    for axis in study.chosen_axes(axes):
        spent = _costs(study, axis, at)
        found = {arm: differences(study, arm, base, axis, spent) for arm in others}
        tables.append(_table(study, axis, base, spent, found))
        figures["axes"][axis] = [
            {"cost": cost, "arm": arm, "difference": interval_figures(some[i])}
            for i, cost in enumerate(spent)
            for arm, some in found.items()
        ]
        said += [_sentence(axis, arm, base, spent[-1], some[-1]) for arm, some in found.items()]
        rows = [
            (f"{arm} at {amount(cost)}", some[i].mean, some[i].low, some[i].high)
            for i, cost in enumerate(spent)
            for arm, some in found.items()
        ]
        if rows:
            title = f"Quality over {base}'s at equal {AXES[axis]}"
            note = "Right of 0 is better than the baseline. Paired by seed; 95 %."
            label = "difference of quality"
            pictures.append(Picture(title, note, intervals(title, label, rows, 0.0, base)))
    verdict = " ".join(said) or f"Only one arm, {base}: nothing to compare it with."
    title = "Quality at matched cost"
    return Answer(title, tables, verdict, pictures, cautions(study), figures)


def differences(
    study: Study, arm: str, base: str, axis: str, spent: Sequence[float]
) -> list[Interval]:
    """Quality over the baseline's, by cost, paired by seed."""
    seeds = study.common_seeds(arm, base)
    at = np.array(spent)
    own, other = (
        np.stack([study.arm(name)[seed].curves[axis].quality_at(at) for seed in seeds])
        for name in (arm, base)
    )
    return [student(column) for column in (own - other).T]


def common_cost(study: Study, axis: str, arms: Sequence[str] | None = None) -> float:
    """What every run spent at least."""
    return min(run.curves[axis].budget for run in study.every(arms))


def _costs(study: Study, axis: str, at: Sequence[float]) -> list[float]:
    most = common_cost(study, axis)
    for cost in at:
        if not 0 < cost <= most:
            raise InvalidInputError(
                f"--at is {cost:g}; valid: {AXES[axis]} above 0, up to the {amount(most)} that "
                "every run spent"
            )
    return list(at) or [share * most for share in SHARES]


def _table(
    study: Study, axis: str, base: str, spent: Sequence[float], found: dict[str, list[Interval]]
) -> Table:
    each = [
        (some[i].mean, some[i].low, some[i].high)
        for i in range(len(spent))
        for some in found.values()
    ]
    drawn = iter(bars(each, 0.0) if each else [])
    rows = []
    for i, cost in enumerate(spent):
        for arm in [base, *found]:
            runs = study.arm(arm).values()
            quality = student([float(r.curves[axis].quality_at(np.array(cost))) for r in runs])
            lag = "0" if arm == base else interval_text(found[arm][i])
            shown = "" if arm == base else next(drawn)
            rows.append([amount(cost), arm, interval_text(quality, ".3f"), lag, shown])
    head = (AXES[axis], "arm", "quality [95 %]", f"- {base} [95 %]", "")
    return Table(f"Quality at equal {AXES[axis]}", head, rows)


def _sentence(axis: str, arm: str, base: str, cost: float, found: Interval) -> str:
    return (
        f"With {amount(cost)} {AXES[axis]} each, {arm} is {verdict_of(found)} {base} by "
        f"{interval_text(found)} ({found.seeds} pairs)."
    )


def verdict_of(found: Interval) -> str:
    """Of a difference of quality."""
    if found.low > 0:
        return "better than"
    if found.high < 0:
        return "worse than"
    return "not told apart from"
