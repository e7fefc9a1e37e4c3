"""Do two levers compose?  Four settings: the baseline, each lever alone, and both.

With gains measured as log-ratios of the cost to one quality, levers that do not touch each other
add: gain(both) = gain(A) + gain(B), the product of their ratios.  What is missing from that sum is
their interaction, taken seed by seed.  They *compose* if, with 95 % confidence, both together keep
at least `KEPT` of the product of what they gain alone; they *conflict* if they certainly do not
reach that product.  Anything else cannot be told with these seeds, and it is said how many would.
"""

import math

import numpy as np

from steersman.controller.evaluate.answer import (
    Answer,
    Picture,
    Table,
    bars,
    interval_figures,
    span,
)
from steersman.controller.evaluate.costs import (
    budgets,
    check_targets,
    costs,
    default_targets,
    floored,
)
from steersman.controller.evaluate.curves import cautions
from steersman.controller.evaluate.paired import Interval, seeds_needed, student
from steersman.controller.evaluate.plots import intervals
from steersman.controller.evaluate.study import AXES, Study
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats

KEPT = 0.9
"""Share of the product of speed-ups that must be left: a tenth lost is what a user would notice."""


def compose(
    study: Study,
    baseline: str,
    a: str,
    b: str,
    both: str,
    target: float | None = None,
    axis: str = "tokens",
) -> Answer:
    """The product of the single gains against the measured joint one."""
    named = (baseline, a, b, both)
    for arm in named:
        study.arm(arm)
    if len(set(named)) < len(named):
        raise InvalidInputError(f"the four settings are not different: {', '.join(named)}")
    seeds = sorted(set.intersection(*(set(study.arm(arm)) for arm in named)))
    if not seeds:
        raise InvalidInputError(f"{', '.join(named)} have no seed in common")
    study.need(axis)
    targets = check_targets(study, [] if target is None else [target], axis)
    goal = (targets or default_targets(study, axis))[-1]
    logs, reached = _logs(study, named, seeds, axis, goal)
    gain_a, gain_b, joint = (logs[:, 0] - logs[:, i] for i in (1, 2, 3))
    lines = {
        f"{a} alone": student(gain_a),
        f"{b} alone": student(gain_b),
        "product of both": student(gain_a + gain_b),
        f"{both}, measured": student(joint),
        "measured / product": student(joint - gain_a - gain_b),
    }
    interaction = lines["measured / product"]
    drawn = bars([line.exp() for line in lines.values()], 1.0)
    rows = [
        [name, f"{line.exp()[0]:.3f}{span(*line.exp()[1:])}", bar]
        for (name, line), bar in zip(lines.items(), drawn, strict=True)
    ]
    title = "Composability"
    unit = f"speed-up in {AXES[axis]} to {goal:g}"
    return Answer(
        title,
        [Table(f"{title}: {len(seeds)} seeds", ("setting", f"{unit} [95 %]", ""), rows)],
        _verdict(interaction, a, b, reached, len(seeds), named),
        [
            Picture(
                f"Gains: {unit}",
                f"Over {baseline}; right of 1 is cheaper. Paired by seed; 95 %.",
                intervals(title, unit, [(n, *v.exp()) for n, v in lines.items()], 1.0, baseline),
            )
        ],
        cautions(study),
        {
            "quality": goal,
            "axis": axis,
            "verdict_class": verdict_of(interaction),
            "log_gains": {name: interval_figures(line) for name, line in lines.items()},
            "reached": dict(zip(named, reached, strict=True)),
            "seeds_needed": needed(interaction),
        },
    )


def _logs(
    study: Study, arms: tuple[str, ...], seeds: list[int], axis: str, goal: float
) -> tuple[Floats, list[int]]:
    """(seeds, arms) log-costs within the budget that all four had, and how many got there."""
    limit = np.min([budgets(study, arm, seeds, axis) for arm in arms], axis=0)
    found = [costs(study, arm, seeds, axis, np.array([goal]))[:, 0] for arm in arms]
    reached = [int((cost <= limit).sum()) for cost in found]
    logs = [np.log(floored(np.minimum(cost, limit), limit)) for cost in found]
    return np.stack(logs, axis=1), reached


def verdict_of(interaction: Interval) -> str:
    """compose, conflict or cannot tell; of the log of measured over product."""
    if interaction.low > math.log(KEPT):
        return "compose"
    if interaction.high < 0:
        return "conflict"
    return "cannot tell"


def needed(interaction: Interval) -> int | None:
    """Seeds that would tell levers that compose exactly from ones that lose `1 - KEPT`."""
    if not math.isfinite(interaction.sd):
        return None
    return seeds_needed(math.log(KEPT), interaction.sd)


def _verdict(
    interaction: Interval, a: str, b: str, reached: list[int], seeds: int, named: tuple[str, ...]
) -> str:
    middle, low, high = interaction.exp()
    figures = f"measured over product is {middle:.3f}{span(low, high)}"
    found = verdict_of(interaction)
    missed = [
        f"{arm} in {seeds - count} of {seeds}"
        for arm, count in zip(named, reached, strict=True)
        if count < seeds
    ]
    tail = f"; the quality was not reached by {', '.join(missed)}" if missed else ""
    if found == "cannot tell":
        count = needed(interaction)
        more = "two seeds or more" if count is None else f"about {count:,} seeds"
        return f"Cannot tell whether {a} and {b} compose: {figures}; {more} would tell{tail}."
    return f"{a} and {b} {found}: {figures}{tail}."
