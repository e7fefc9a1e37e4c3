"""What reaching a quality costs, C(q), arm by arm, and against the baseline."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from steersman.controller.evaluate.answer import (
    Answer,
    Picture,
    Table,
    amount,
    bars,
    ratio_figures,
    ratio_text,
)
from steersman.controller.evaluate.costs import arm_costs, check_targets, default_targets, ratios
from steersman.controller.evaluate.paired import (
    MAX_SEEDS,
    Ratio,
    detectable,
    seeds_needed,
    worst_sd,
)
from steersman.controller.evaluate.plots import over_points, quality_over_cost
from steersman.controller.evaluate.study import AXES, Study
from steersman.estimators.errors import InvalidInputError

RATIO_LEVELS = 20
"""Qualities at which the ratio is drawn ..."""
FIRST = 0.2
"""... from so far between where all have started and the highest target: what is reached at once
has a cost of chance."""


def curves(
    study: Study,
    baseline: str | None = None,
    targets: Sequence[float] = (),
    axes: Sequence[str] = (),
    effect: float = 0.9,
) -> Answer:
    """Tables of cost and ratio by target and axis; `effect` is the ratio seeds are asked for."""
    base = study.arms[0] if baseline is None else baseline
    study.arm(base)
    if not 0 < effect < math.inf or effect == 1:
        raise InvalidInputError(f"--effect is {effect}; valid: a ratio above 0 that is not 1")
    kept = study.chosen_axes(axes)
    wanted = check_targets(study, list(targets), kept[0]) or default_targets(study, kept[0])
    others = [arm for arm in study.arms if arm != base]
    found = {
        axis: {arm: ratios(study, arm, base, axis, np.array(wanted)) for arm in others}
        for axis in kept
    }
    power = [_power(kept[0], arm, _surest(some), effect) for arm, some in found[kept[0]].items()]
    said = [_sentence(study, arm, base, wanted[-1], found) for arm in others]
    return Answer(
        "Cost to reach quality",
        [_table(study, axis, base, wanted, against) for axis, against in found.items()],
        " ".join(said) or f"Only one arm, {base}: nothing to compare it with.",
        [picture for axis in kept for picture in _pictures(study, axis, base, wanted)],
        power + cautions(study),
        {
            "baseline": base,
            "axes": {
                axis: _figures(study, axis, base, wanted, against)
                for axis, against in found.items()
            },
        },
    )


def _table(
    study: Study,
    axis: str,
    base: str,
    targets: Sequence[float],
    against: dict[str, list[Ratio]],
) -> Table:
    arms = [base, *against]
    found = {arm: arm_costs(study, arm, axis, np.array(targets)) for arm in arms}
    all_ratios = [r.log.exp() for some in against.values() for r in some]
    drawn = iter(bars([r.log.exp() for i in range(len(targets)) for r in _at(against, i)], 1.0)
                 if all_ratios else [])  # fmt: skip
    rows = []
    for i, target in enumerate(targets):
        for arm in arms:
            own = found[arm][i]
            middle, low, high = own.log.exp()
            interval = "" if own.bound or math.isnan(low) else f" [{amount(low)}, {amount(high)}]"
            rows.append(
                [
                    f"{target:.3f}",
                    arm,
                    f"{own.reached} of {own.runs}",
                    f"{own.bound}{amount(middle)}{interval}",
                    "1" if arm == base else ratio_text(against[arm][i]),
                    "" if arm == base else next(drawn),
                ]
            )
    head = ("quality", "arm", "reached", f"{AXES[axis]} [95 %]", f"/ {base} [95 %]", "")
    return Table(f"{AXES[axis]} to quality", head, rows)


def _at(against: dict[str, list[Ratio]], target: int) -> list[Ratio]:
    return [found[target] for found in against.values()]


def _pictures(study: Study, axis: str, base: str, targets: Sequence[float]) -> list[Picture]:
    pictures = [
        Picture(
            f"Quality over {AXES[axis]}",
            "Read across: how far right a curve is at a quality is what it costs to get there. "
            "Geometric mean over seeds, as far as every run gets; bands 95 %.",
            quality_over_cost(study, axis, study.arms, targets),
            tuple(enumerate(study.arms)),
        )
    ]
    others = [(i, arm) for i, arm in enumerate(study.arms) if arm != base]
    if not others:
        return pictures
    low = max(float(run.curves[axis].quality[0]) for run in study.every())
    level = np.linspace(low + FIRST * (max(targets) - low), max(targets), RATIO_LEVELS)
    lines = []
    for i, arm in others:
        found = [r.log.exp() for r in ratios(study, arm, base, axis, level)]
        points = [(float(q), *each) for q, each in zip(level, found, strict=True)]
        lines.append((i, arm, points))
    title = f"Ratio to {base}, {AXES[axis]}"
    pictures.append(
        Picture(
            f"{AXES[axis].capitalize()} over {base}'s, at each quality",
            "Below 1 is cheaper. Paired by seed; bands are Student's 95 % intervals.",
            over_points(title, "quality", "ratio", lines, mark=1.0, bands=True),
            tuple(others),
        )
    )
    return pictures


def _sentence(
    study: Study, arm: str, base: str, target: float, found: dict[str, dict[str, list[Ratio]]]
) -> str:
    """Of the highest target, over all axes."""
    highest = {axis: against[arm][-1] for axis, against in found.items()}
    parts = [f"{ratio_text(r)} times the {AXES[axis]}" for axis, r in highest.items()]
    axis = next(iter(found))
    got = [
        f"{own.reached} of {own.runs} runs of {name}"
        for name in (arm, base)
        for own in arm_costs(study, name, axis, np.array([target]))
    ]
    pairs = highest[axis].seeds
    return (
        f"To reach {target:g}, {arm} needs {', '.join(parts)} of {base} "
        f"({pairs} pair{'s' * (pairs != 1)}; {' and '.join(got)} got there)."
    )


def _surest(found: list[Ratio]) -> Ratio:
    """Of the highest target that all runs reach: a bound has no spread to plan with."""
    return next((r for r in reversed(found) if r.bound == "="), found[-1])


def _power(axis: str, arm: str, found: Ratio, effect: float) -> str:
    """What these seeds could have seen."""
    sd, seeds = found.log.sd, found.seeds
    if seeds < 2:
        return f"{arm}, {AXES[axis]}: one pair of runs has no interval; two seeds or more do."
    least, worst = detectable(sd, seeds), worst_sd(sd, seeds)
    need, at_worst = (seeds_needed(math.log(effect), each) for each in (sd, worst))
    return (
        f"{arm}, {AXES[axis]}: with {seeds} pairs a ratio below {math.exp(-least):.3f} or above "
        f"{math.exp(least):.3f} is seen with 80 % power; a ratio of {effect:g} needs "
        f"{_seeds(need)} seeds, and up to {_seeds(at_worst)} if the spread of log-ratios "
        f"({sd:.3f}) is as large as so few seeds allow ({worst:.3f})."
    )


def _seeds(count: int) -> str:
    return f"{count:,}" if count < MAX_SEEDS else f"more than {MAX_SEEDS:,}"


def _figures(
    study: Study,
    axis: str,
    base: str,
    targets: Sequence[float],
    against: dict[str, list[Ratio]],
) -> list[dict[str, Any]]:
    rows = []
    for arm in [base, *against]:
        for i, own in enumerate(arm_costs(study, arm, axis, np.array(targets))):
            middle, low, high = own.log.exp()
            row: dict[str, Any] = {
                "quality": targets[i],
                "arm": arm,
                "reached": own.reached,
                "runs": own.runs,
                "cost": middle,
                "cost_is_lower_bound": bool(own.bound),
                "cost_ci95": [low, high],
            }
            if arm != base:
                found = against[arm][i]
                row["against_baseline"] = ratio_figures(found)
                row["detectable_ratio"] = math.exp(-detectable(found.log.sd, found.seeds))
            rows.append(row)
    return rows


def cautions(study: Study) -> list[str]:
    """What a reader must know of the runs themselves."""
    said = []
    fell = [f"{run.arm} seed {run.seed}" for run in study.every() if run.fell]
    if fell:
        said.append(
            f"Became worse again, beyond noise, and is read up to its peak: {', '.join(fell)}."
        )
    if any((run.evaluated <= 0).any() for run in study.every()):
        said.append(
            "How many samples an evaluation rests on is not told of all: evaluations weigh the "
            "same, and their noise is guessed from how much neighbours differ."
        )
    absent = [text for axis, text in AXES.items() if axis not in study.axes()]
    if absent:
        said.append(f"Not known of all runs, so not compared: {', '.join(absent)}.")
    lone = [arm for arm in study.arms if len(study.arm(arm)) == 1]
    if lone:
        said.append(f"One seed only, so no interval over seeds: {', '.join(lone)}.")
    return said
