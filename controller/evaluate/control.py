"""Equal-work uninformed control: is it the selection's judgement, or only its shape of work?

A policy that chooses prompts also changes how much is rolled out: fewer groups, larger ones, more
refills.  The control does the same amount of work with prompts drawn at random.  What is gained
over it, at equal work, is the criterion's; what the control gains over the plain baseline is the
work's.
"""

import numpy as np

from steersman.controller.evaluate.answer import (
    Answer,
    Picture,
    Table,
    bars,
    interval_figures,
    interval_text,
    ratio_figures,
    ratio_text,
)
from steersman.controller.evaluate.costs import check_targets, default_targets, ratios
from steersman.controller.evaluate.curves import cautions
from steersman.controller.evaluate.matched import common_cost, differences
from steersman.controller.evaluate.paired import Interval, Ratio, student
from steersman.controller.evaluate.plots import intervals
from steersman.controller.evaluate.study import AXES, Study

EQUAL_WORK = 0.05
"""Relative difference of the tokens of a step up to which work counts as equal."""


def control(
    study: Study,
    selection: str,
    uninformed: str,
    baseline: str | None = None,
    target: float | None = None,
    axis: str = "tokens",
) -> Answer:
    """The selection against a random choice of the same amount, and against no selection."""
    pairs = [(selection, uninformed, "the criterion")]
    if baseline is not None:
        pairs += [(uninformed, baseline, "the work"), (selection, baseline, "both")]
    for arm in dict.fromkeys(name for pair in pairs for name in pair[:2]):
        study.arm(arm)
    work = work_ratio(study, selection, uninformed)
    study.need(axis)
    targets = check_targets(study, [] if target is None else [target], axis)
    goal = (targets or default_targets(study, axis))[-1]
    spent = common_cost(study, axis, [selection, uninformed, *([baseline] if baseline else [])])
    found = [
        (
            own, other, what,
            ratios(study, own, other, axis, np.array([goal]))[0],
            differences(study, own, other, axis, [spent])[0],
        )
        for own, other, what in pairs
    ]  # fmt: skip
    shown = bars([r.log.exp() for *_, r, _ in found], 1.0)
    rows = [
        [what, f"{own} / {other}", f"{r.reached} / {r.base_reached} of {r.seeds}",
         ratio_text(r), interval_text(d), drawn]
        for (own, other, what, r, d), drawn in zip(found, shown, strict=True)
    ]  # fmt: skip
    head = ("owed to", "arms", "reached", f"{AXES[axis]} to {goal:g} [95 %]",
            "quality at equal cost [95 %]", "")  # fmt: skip
    title = "Equal-work uninformed control"
    picture = Picture(
        f"Ratios of {AXES[axis]} to {goal:g}",
        "Left of 1 is cheaper. Paired by seed; 95 %.",
        intervals(
            "Ratios", f"ratio of {AXES[axis]}",
            [(f"{own} / {other}", *r.log.exp()) for own, other, _, r, _ in found], 1.0, "equal",
        ),
    )  # fmt: skip
    return Answer(
        title,
        [Table(title, head, rows)],
        _verdict(selection, uninformed, axis, goal, found[0][3], work),
        [picture],
        [_work_note(selection, uninformed, work), *cautions(study)],
        {
            "quality": goal,
            "axis": axis,
            "tokens_per_step_ratio": {"mean": work.exp()[0], "ci95": list(work.exp()[1:])},
            "pairs": [
                {"of": own, "over": other, "owed_to": what, "cost": ratio_figures(r),
                 "quality_at_equal_cost": interval_figures(d)}
                for own, other, what, r, d in found
            ],
        },
    )  # fmt: skip


def work_ratio(study: Study, arm: str, other: str) -> Interval:
    """Log of the tokens that a step costs, over the other's, paired by seed."""
    logs = []
    for seed in study.common_seeds(arm, other):
        rates = []
        for name in (arm, other):
            run = study.arm(name)[seed]
            steps = run.step[-1] - run.step[0]
            rates.append((run.tokens[-1] - run.tokens[0]) / steps if steps > 0 else np.nan)
        logs.append(float(np.log(rates[0] / rates[1])))
    return student(logs)


def _equal(work: Interval) -> bool:
    return bool(abs(work.mean) <= np.log1p(EQUAL_WORK))


def _work_note(selection: str, uninformed: str, work: Interval) -> str:
    if np.isnan(work.mean):
        return "Tokens per step are not known, so it cannot be said whether work was equal."
    text = f"A step of {selection} cost {work.exp()[0]:.3f} times the tokens of {uninformed}'s"
    if _equal(work):
        return f"{text}: equal work."
    return (
        f"{text}: not equal work step by step; the table compares at equal cost all the same, but "
        "the control should be run with the same number of rollouts."
    )


def _verdict(
    selection: str, uninformed: str, axis: str, goal: float, r: Ratio, work: Interval
) -> str:
    low, high = r.log.exp()[1:]
    if high < 1:
        said = "the criterion gains"
    elif low > 1:
        said = "the criterion loses: choosing at random is cheaper"
    else:
        said = "cannot tell the criterion from choosing at random"
    unequal = "" if _equal(work) else ", though work per step was not equal"
    return (
        f"{said[0].upper()}{said[1:]}: {selection} needs {ratio_text(r)} times the {AXES[axis]} "
        f"of {uninformed} to reach {goal:g} ({r.seeds} pairs){unequal}."
    )
