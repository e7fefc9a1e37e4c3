"""What targets cost: of every run, of an arm, of an arm against another."""

import math
from dataclasses import dataclass

import numpy as np

from steersman.controller.evaluate.paired import Interval, Ratio, ratio, student
from steersman.controller.evaluate.study import Study
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats

WAYS = (0.5, 0.75, 0.9)
"""Default targets: so far from where all runs have started to where every arm's median run ends."""
DIGITS = 3
"""Of a default target."""


@dataclass(frozen=True)
class ArmCost:
    """An arm's cost to one target."""

    log: Interval
    """Over seeds; a run that did not get there counts with its budget."""
    reached: int
    runs: int

    @property
    def bound(self) -> str:
        """ ">=": some runs did not get there, and cost more than they had."""
        return "" if self.reached == self.runs else ">= "


def default_targets(study: Study, axis: str) -> list[float]:
    """A grid within what all arms can tell about."""
    start = max(float(run.curves[axis].quality[0]) for run in study.every())
    end = min(
        float(np.median([run.curves[axis].quality[-1] for run in study.arm(arm).values()]))
        for arm in study.arms
    )
    if not end > start:
        raise InvalidInputError(
            f"no quality is reached by all arms that not all runs have from the start "
            f"({start:.3f}); give one with --target"
        )
    found = [round(start + way * (end - start), DIGITS) for way in WAYS]
    return list(dict.fromkeys(found))


def check_targets(study: Study, targets: list[float], axis: str) -> list[float]:
    """Raise for a target that no run reaches: nothing could be said about it."""
    best = max(float(run.curves[axis].quality[-1]) for run in study.every())
    for target in targets:
        if not math.isfinite(target):
            raise InvalidInputError(f"--target is {target}; valid: a finite number")
        if target > best:
            raise InvalidInputError(
                f"no run reaches quality {target:g}; the best curve ends at {best:.3f}"
            )
    return targets


def costs(study: Study, arm: str, seeds: list[int], axis: str, targets: Floats) -> Floats:
    """(seeds, targets) C(q); infinite where a run never gets there."""
    return np.stack([study.arm(arm)[seed].curves[axis].cost_of(targets) for seed in seeds])


def budgets(study: Study, arm: str, seeds: list[int], axis: str) -> Floats:
    """(seeds,) what each run cost in all."""
    return np.array([study.arm(arm)[seed].curves[axis].budget for seed in seeds])


def arm_costs(study: Study, arm: str, axis: str, targets: Floats) -> list[ArmCost]:
    """By target."""
    seeds = list(study.arm(arm))
    found, limit = costs(study, arm, seeds, axis, targets), budgets(study, arm, seeds, axis)
    return [
        ArmCost(
            student(np.log(floored(np.minimum(own, limit), limit))),
            int(np.isfinite(own).sum()),
            len(seeds),
        )
        for own in found.T
    ]


def ratios(study: Study, arm: str, base: str, axis: str, targets: Floats) -> list[Ratio]:
    """By target, over the seeds that both have."""
    seeds = study.common_seeds(arm, base)
    own, other = (costs(study, name, seeds, axis, targets) for name in (arm, base))
    own_limit, other_limit = (budgets(study, name, seeds, axis) for name in (arm, base))
    limit = np.minimum(own_limit, other_limit)
    return [
        ratio(floored(a, limit), floored(b, limit), own_limit, other_limit)
        for a, b in zip(own.T, other.T, strict=True)
    ]


FLOOR = 1e-3
"""Least share of the budget that a cost counts with: a run that starts at the target costs 0, of
which there is no logarithm."""


def floored(cost: Floats, limit: Floats) -> Floats:
    """Costs whose logarithm exists."""
    return np.maximum(cost, FLOOR * limit)
