"""What came out of the games of one workload: who was best, and the judged entry's regret."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steersman.controller.regret.curves import Change, Regret, best_of, changes, regret
from steersman.controller.regret.games import Played
from steersman.controller.regret.long_runs import LongRun
from steersman.controller.tournament.entries import DEFAULTS
from steersman.estimators.observation import Floats

DEFAULT = DEFAULTS["placement"]


@dataclass(frozen=True)
class Line:
    """One entry's figures; sums of a run, means over seeds."""

    entry: str
    correctness: str
    """As played."""
    seconds: float
    over_default: float
    """Its seconds over the default's."""
    regret: Regret
    """Against the best fixed entry."""
    step_s: tuple[tuple[float, ...], ...]
    """(seeds, steps) seconds."""
    answers: float
    tokens: float
    deferred: float
    moves: float
    kept_over_asked: float
    tick_ms_p99: float


@dataclass(frozen=True)
class Finding:
    """One workload."""

    workload: str
    summary: str
    steps: int
    seeds: tuple[int, ...]
    judged: str
    best: str
    """The best fixed entry in hindsight, over all seeds."""
    against_best: Regret
    against_default: Regret
    changes: tuple[Change, ...]
    """The first regime included."""
    lines: tuple[Line, ...]
    """The judged entry first."""


def finding(run: LongRun, played: Sequence[Played], judged: str) -> Finding | None:
    """Of the games of one workload; None where those of the judged entry, the default or all other
    entries are missing.  Entries that lack a seed which others have are left out."""
    seeds = sorted({one.game.seed for one in played})
    by_entry: dict[str, dict[int, Played]] = {}
    for one in played:
        by_entry.setdefault(one.game.entry, {})[one.game.seed] = one
    whole = {name: own for name, own in by_entry.items() if len(own) == len(seeds)}
    if judged not in whole or DEFAULT not in whole:
        return None
    seconds = {name: np.array([own[s].seconds for s in seeds]) for name, own in whole.items()}
    fixed = [name for name in whole if name != judged]
    best = best_of(seconds, fixed)
    steps = seconds[judged].shape[1]
    return Finding(
        workload=run.name,
        summary=run.summary,
        steps=steps,
        seeds=tuple(seeds),
        judged=judged,
        best=best,
        against_best=regret(seconds[judged], seconds[best], best),
        against_default=regret(seconds[judged], seconds[DEFAULT], DEFAULT),
        changes=tuple(changes(seconds, judged, fixed, run.starts(steps))),
        lines=tuple(
            _line(name, [whole[name][s] for s in seeds], seconds, best) for name in (judged, *fixed)
        ),
    )


def _line(name: str, own: Sequence[Played], seconds: dict[str, Floats], best: str) -> Line:
    def mean(field: str) -> float:
        return float(np.mean([getattr(one, field) for one in own]))

    total_s = float(seconds[name].sum(axis=1).mean())
    return Line(
        entry=name,
        correctness=max((one.correctness for one in own), key=lambda text: text != "exact"),
        seconds=total_s,
        over_default=float(seconds[name].sum() / seconds[DEFAULT].sum()),
        regret=regret(seconds[name], seconds[best], best),
        step_s=tuple(tuple(row) for row in seconds[name].tolist()),
        answers=mean("answers"),
        tokens=mean("tokens"),
        deferred=mean("deferred"),
        moves=mean("moves"),
        kept_over_asked=mean("kept_over_asked"),
        tick_ms_p99=float(np.median([one.tick_ms_p99 for one in own])),
    )


HEAD = (
    "entry", "class", "seconds", "/ default", "regret", "growth", "by thirds", "answers",
    "put off", "moves", "kept", "tick p99",
)  # fmt: skip
"""What `figures` says."""


def figures(line: Line, finding: Finding) -> list[str]:
    """Of an entry, as text; regret is against the best fixed entry."""
    own = line.entry == finding.best
    return [
        line.entry,
        line.correctness,
        f"{line.seconds:,.0f}",
        f"{line.over_default:.3f}",
        "best fixed" if own else f"{line.regret.total_s:+,.1f} s",
        "-" if own else growth_text(line.regret.growth),
        "-" if own else " ".join(f"{share:+.1%}" for share in line.regret.thirds_share),
        f"{line.answers:,.0f}",
        f"{line.deferred:,.0f}",
        f"{line.moves:,.0f}",
        f"{line.kept_over_asked:.3f}",
        f"{line.tick_ms_p99:.1f} ms",
    ]


def sentences(finding: Finding) -> list[str]:
    """Of the judged entry, against the best fixed one and the default."""
    both = {one.against: one for one in (finding.against_best, finding.against_default)}
    return [sentence(one, finding) for one in both.values()]


def growth_text(growth: float | None) -> str:
    """An exponent, or that there is none."""
    return "not positive" if growth is None else f"{growth:.2f}"


def sentence(one: Regret, finding: Finding) -> str:
    """A regret in words."""
    thirds = ", ".join(
        f"{s:+.2f} s ({share:+.1%})"
        for s, share in zip(one.thirds_s, one.thirds_share, strict=True)
    )
    grows = (
        "not positive in the second half"
        if one.growth is None
        else f"{'grows' if one.growth > 0 else 'shrinks'} like steps^{one.growth:.2f} in the "
        "second half"
    )
    return (
        f"Regret of {finding.judged} against {one.against}: {one.total_s:+,.1f} s in "
        f"{finding.steps} steps, {grows}; per step by thirds {thirds}."
    )


CHANGE_HEAD = ("from step", "regime", "best fixed in it", "regret in it", "steps until within 5 %")
"""What `change_figures` says."""


def change_figures(change: Change) -> list[str]:
    """Of a regime, as text."""
    each = ["never" if n is None else str(n) for n in change.steps_until_near]
    return [
        str(change.step),
        change.regime,
        change.best,
        f"{change.regret_s:+,.1f} s",
        ", ".join(each),
    ]
