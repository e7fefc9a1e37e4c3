"""Staleness sweep: what a looser bound on the lag of weight versions buys, and what it costs.

One arm per bound.  A larger one keeps more of the fleet busy and trains on older samples.  Both are
shown: quality at equal cost, and the cost of a quality.  The loosest bound that is certainly not
worse than the tightest by more than a margin is named (a test of non-inferiority, by the lower end
of the interval).
"""

from collections.abc import Mapping

import numpy as np

from steersman.controller.evaluate.answer import (
    Answer,
    Picture,
    Table,
    interval_figures,
    interval_text,
    ratio_figures,
    ratio_text,
)
from steersman.controller.evaluate.costs import check_targets, default_targets, ratios
from steersman.controller.evaluate.curves import cautions
from steersman.controller.evaluate.matched import common_cost, differences
from steersman.controller.evaluate.paired import Interval, Ratio
from steersman.controller.evaluate.plots import over_points
from steersman.controller.evaluate.study import AXES, Study
from steersman.estimators.errors import InvalidInputError


def staleness(
    study: Study,
    lags: Mapping[str, int],
    margin: float = 0.01,
    target: float | None = None,
    axis: str = "replica_s",
) -> Answer:
    """Arms by their lag bound, against the tightest; `lags` stands over what the runs tell."""
    bounds = lag_bounds(study, lags)
    if not margin > 0:
        raise InvalidInputError(f"--margin is {margin}; valid: above 0")
    base, *others = bounds
    study.need(axis)
    targets = check_targets(study, [] if target is None else [target], axis)
    goal = (targets or default_targets(study, axis))[-1]
    spent = common_cost(study, axis, list(bounds))
    found: dict[str, tuple[Interval, Ratio]] = {
        arm: (
            differences(study, arm, base, axis, [spent])[0],
            ratios(study, arm, base, axis, np.array([goal]))[0],
        )
        for arm in others
    }
    rows = [[str(bounds[base]), base, _lag(study, base), "0", "1"]]
    rows += [
        [str(bounds[arm]), arm, _lag(study, arm), interval_text(lost), ratio_text(cost)]
        for arm, (lost, cost) in found.items()
    ]
    unit = AXES[axis]
    head = (
        "lag bound", "arm", "mean lag", f"quality at equal {unit} [95 %]", f"{unit} to {goal:g}",
    )  # fmt: skip
    lines = [(float(bounds[base]), 0.0, np.nan, np.nan)]
    lines += [(float(bounds[a]), lost.mean, lost.low, lost.high) for a, (lost, _) in found.items()]
    title = "Staleness sweep"
    return Answer(
        title,
        [Table(title, head, rows)],
        _verdict(bounds, base, found, margin, unit, goal),
        [
            Picture(
                f"Quality over {base}'s at equal {unit}, by lag bound",
                "Paired by seed; whiskers 95 %.",
                over_points(title, "lag bound", "difference of quality", [(0, "arms", lines)], 0.0),
            )
        ],
        cautions(study),
        {
            "quality": goal,
            "axis": axis,
            "margin": margin,
            "arms": [
                {"arm": arm, "max_lag": bounds[arm], "quality": interval_figures(lost),
                 "cost": ratio_figures(cost)}
                for arm, (lost, cost) in found.items()
            ],
        },
    )  # fmt: skip


def lag_bounds(study: Study, lags: Mapping[str, int]) -> dict[str, int]:
    """Arm -> lag bound, the tightest first; arms whose bound is not known are an error."""
    for arm in lags:
        study.arm(arm)
    found = {}
    for arm in study.arms:
        told = lags.get(arm, study.of_arm(arm).get("max_lag"))
        if told is None:
            raise InvalidInputError(
                f"the lag bound of arm {arm!r} is not known; give it with --lag {arm}=N"
            )
        found[arm] = int(told)
    if len(set(found.values())) < 2:
        only = ", ".join(f"{arm} {lag}" for arm, lag in found.items())
        raise InvalidInputError(f"a sweep needs arms of two lag bounds or more; there is {only}")
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _lag(study: Study, arm: str) -> str:
    """As the runs realised it, where they tell."""
    each = [
        float(np.nanmean(run.extras["mean_lag"]))
        for run in study.arm(arm).values()
        if np.isfinite(run.extras.get("mean_lag", np.array([np.nan]))).any()
    ]
    return f"{np.mean(each):.2f}" if each else "not known"


def _verdict(
    bounds: dict[str, int],
    base: str,
    found: dict[str, tuple[Interval, Ratio]],
    margin: float,
    unit: str,
    goal: float,
) -> str:
    safe = [arm for arm, (lost, _) in found.items() if lost.low > -margin]
    harmed = [arm for arm, (lost, _) in found.items() if lost.high < 0]
    said = (
        f"The loosest bound that is not worse than {bounds[base]} by more than {margin:g} at "
        f"equal {unit} is {bounds[safe[-1]]} ({safe[-1]}: {ratio_text(found[safe[-1]][1])} times "
        f"the {unit} to {goal:g})"
        if safe
        else f"No bound above {bounds[base]} is certainly within {margin:g} of its quality at "
        f"equal {unit}"
    )
    worse = f"; worse beyond doubt: {', '.join(str(bounds[arm]) for arm in harmed)}"
    return f"{said}{worse if harmed else ''}."
