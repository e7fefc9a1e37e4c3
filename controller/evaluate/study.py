"""A study: the evaluations of many runs, by arm (what was done) and seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from steersman.controller.evaluate.curve import Curve, peak_of, rising, weights
from steersman.controller.evaluate.quality_log import QualityPoint
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.observation import Floats

AXES = {
    "tokens": "tokens",
    "replica_s": "replica-seconds",
    "wall_s": "wall-clock seconds",
}
"""The costs, by the fields of `QualityPoint`."""


@dataclass(frozen=True)
class Run:
    """One arm's run with one seed; (n,) evaluations in their order.  NaN: not known."""

    arm: str
    seed: int
    source: str
    """File it came from."""
    step: Floats
    tokens: Floats
    replica_s: Floats
    wall_s: Floats
    quality: Floats
    evaluated: Floats
    """0: not known."""
    extras: dict[str, Floats]

    def cost(self, axis: str) -> Floats:
        """(n,) of one of the `AXES`."""
        found: Floats = getattr(self, axis)
        return found

    @cached_property
    def peak(self) -> int:
        """Evaluations up to the one after which it became worse again; all, if it did not."""
        return peak_of(self.quality, self.evaluated)

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """By axis, where its costs are known."""
        return {
            axis: rising(self.cost(axis), self.quality, weights(self.evaluated), self.peak)
            for axis in AXES
            if np.isfinite(self.cost(axis)).all()
        }

    @property
    def fell(self) -> bool:
        """Whether it became worse again, beyond noise."""
        return self.peak < len(self.quality)


@dataclass(frozen=True)
class Study:
    """Runs by arm and seed, and what is known of all of them."""

    header: dict[str, Any]
    runs: dict[str, dict[int, Run]]
    sources: tuple[str, ...] = field(default=())

    @property
    def arms(self) -> list[str]:
        """In the order of their first appearance."""
        return list(self.runs)

    def arm(self, name: str) -> dict[int, Run]:
        """Its runs by seed; an unknown name is an error that tells the nearest one."""
        if name not in self.runs:
            raise UnknownNameError("arm", name, self.runs)
        return self.runs[name]

    def every(self, arms: Iterable[str] | None = None) -> list[Run]:
        """All runs of some arms."""
        return [
            run for arm in (self.arms if arms is None else arms) for run in self.arm(arm).values()
        ]

    def axes(self, arms: Iterable[str] | None = None) -> list[str]:
        """Those known of all runs of some arms."""
        runs = self.every(arms)
        return [axis for axis in AXES if all(axis in run.curves for run in runs)]

    def chosen_axes(self, axes: Sequence[str]) -> list[str]:
        """Those asked for, or all that are known; none, or an unknown one, is an error."""
        for axis in axes:
            self.need(axis)
        found = list(dict.fromkeys(axes)) or self.axes()
        if not found:
            raise InvalidInputError(
                f"there is no cost that all runs tell; valid: {', '.join(AXES.values())}"
            )
        return found

    def need(self, axis: str, arms: Iterable[str] | None = None) -> None:
        """Raise unless the costs of all runs of some arms are known."""
        for run in self.every(arms):
            if axis not in run.curves:
                raise InvalidInputError(
                    f"{run.source}: {AXES[axis]} of arm {run.arm!r}, seed {run.seed} are not "
                    f"known; known of all: {', '.join(self.axes(arms)) or 'none'}"
                )

    def common_seeds(self, a: str, b: str) -> list[int]:
        """By which the two are paired; none is an error."""
        own, other = self.arm(a), self.arm(b)
        both = sorted(own.keys() & other.keys())
        if not both:
            raise InvalidInputError(
                f"arms {a!r} and {b!r} have no seed in common ({_listed(own)} and "
                f"{_listed(other)}): runs are compared seed by seed"
            )
        return both

    def of_arm(self, name: str) -> dict[str, Any]:
        """What the header says of an arm."""
        told = self.header.get("arms", {})
        return dict(told.get(name, {})) if isinstance(told, dict) else {}


def study_of(points: Sequence[tuple[str, QualityPoint]], header: dict[str, Any]) -> Study:
    """Put together what was read: (source, point) in the order of the files."""
    grouped: dict[str, dict[int, list[tuple[str, QualityPoint]]]] = {}
    for source, point in points:
        grouped.setdefault(point.arm, {}).setdefault(point.seed, []).append((source, point))
    runs = {
        arm: {seed: _run(own) for seed, own in sorted(seeds.items())}
        for arm, seeds in grouped.items()
    }
    return Study(header, runs, tuple(dict.fromkeys(source for source, _ in points)))


def _run(own: list[tuple[str, QualityPoint]]) -> Run:
    sources = list(dict.fromkeys(source for source, _ in own))
    points = [point for _, point in own]
    arm, seed = points[0].arm, points[0].seed
    if len(sources) > 1:
        raise InvalidInputError(
            f"arm {arm!r}, seed {seed} is in two files: {sources[0]} and {sources[1]}"
        )
    if len(points) < 2:
        raise InvalidInputError(
            f"{sources[0]}: arm {arm!r}, seed {seed} has one evaluation; valid: 2 or more"
        )
    names = sorted({name for point in points for name in point.extras})
    run = Run(
        arm=arm,
        seed=seed,
        source=sources[0],
        step=np.array([p.step for p in points], dtype=np.float64),
        tokens=np.array([p.tokens if p.tokens >= 0 else np.nan for p in points], dtype=np.float64),
        replica_s=np.array([p.replica_s for p in points], dtype=np.float64),
        wall_s=np.array([p.wall_s for p in points], dtype=np.float64),
        quality=np.array([p.quality for p in points]),
        evaluated=np.array([p.evaluated for p in points], dtype=np.float64),
        extras={name: np.array([p.extras.get(name, np.nan) for p in points]) for name in names},
    )
    for axis, text in AXES.items():
        _check_rising(run, axis, text)
    return run


def _check_rising(run: Run, axis: str, text: str) -> None:
    cost = run.cost(axis)
    falls = np.flatnonzero(np.diff(cost) < 0)
    if len(falls):
        i = int(falls[0])
        raise InvalidInputError(
            f"{run.source}: arm {run.arm!r}, seed {run.seed}: {text} fall from {cost[i]:g} to "
            f"{cost[i + 1]:g} at step {run.step[i + 1]:g}; they are sums since the run began (two "
            "runs under one seed?)"
        )
    if cost[-1] == 0:
        raise InvalidInputError(
            f"{run.source}: arm {run.arm!r}, seed {run.seed}: {text} are 0 to the end; leave them "
            "out where they are not known"
        )


def _listed(runs: dict[int, Run]) -> str:
    return "seeds " + ", ".join(map(str, sorted(runs)))
