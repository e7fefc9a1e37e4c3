"""Incremental ablation: arms that add one lever at a time, each against the one before it."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from steersman.controller.evaluate.answer import (
    Answer,
    Picture,
    Table,
    bars,
    ratio_figures,
    ratio_text,
)
from steersman.controller.evaluate.costs import check_targets, default_targets, ratios
from steersman.controller.evaluate.curves import cautions
from steersman.controller.evaluate.plots import intervals
from steersman.controller.evaluate.study import AXES, Study
from steersman.estimators.errors import InvalidInputError


def ablation(
    study: Study, arms: Sequence[str] = (), target: float | None = None, axis: str = "tokens"
) -> Answer:
    """What each added lever changes; `arms` in the order in which levers are added."""
    order = list(arms) or study.arms
    if len(order) < 2:
        raise InvalidInputError(
            f"an ablation needs two arms or more; there is {', '.join(order)} alone"
        )
    if len(set(order)) < len(order):
        raise InvalidInputError(f"an arm is named twice: {', '.join(order)}")
    for arm in order:
        study.arm(arm)
    study.need(axis)
    targets = check_targets(study, [] if target is None else [target], axis)
    goal = (targets or default_targets(study, axis))[-1]
    at = np.array([goal])
    steps = [
        (arm, former, ratios(study, arm, former, axis, at)[0],
         ratios(study, arm, order[0], axis, at)[0])
        for former, arm in pairwise(order)
    ]  # fmt: skip
    drawn = bars([added.log.exp() for _, _, added, _ in steps], 1.0)
    rows = [
        [arm, former, f"{added.reached} / {added.base_reached} of {added.seeds}",
         ratio_text(added), ratio_text(whole), bar]
        for (arm, former, added, whole), bar in zip(steps, drawn, strict=True)
    ]  # fmt: skip
    head = ("arm", "added to", "reached", "ratio to that [95 %]", f"/ {order[0]} [95 %]", "")
    helps = [arm for arm, _, added, _ in steps if added.log.exp()[2] < 1]
    hurts = [arm for arm, _, added, _ in steps if added.log.exp()[1] > 1]
    rest = [arm for arm, *_ in steps if arm not in (*helps, *hurts)]
    said = [
        f"{what}: {', '.join(some)}"
        for what, some in (("helps", helps), ("hurts", hurts), ("cannot tell", rest))
        if some
    ]
    title = "Incremental ablation"
    return Answer(
        title,
        [Table(f"{title}: {AXES[axis]} to {goal:g}", head, rows)],
        f"Added to what came before it, to reach {goal:g} in {AXES[axis]}: {'; '.join(said)}.",
        [
            Picture(
                f"What each lever adds: ratio of {AXES[axis]} to {goal:g}",
                "Against the arm before it; left of 1 is cheaper. Paired by seed; 95 %.",
                intervals(
                    title, f"ratio of {AXES[axis]}",
                    [(f"{arm} / {former}", *added.log.exp()) for arm, former, added, _ in steps],
                    1.0, "no change",
                ),
            )
        ],
        cautions(study),
        {
            "quality": goal,
            "axis": axis,
            "order": order,
            "steps": [
                {"arm": arm, "added_to": former, "against_former": ratio_figures(added),
                 "against_first": ratio_figures(whole)}
                for arm, former, added, whole in steps
            ],
        },
    )  # fmt: skip
