"""Speculation by training stage: what drafts earn in the first, second and last third of a run.

A draft model, or a store of earlier answers, fits the policy that it was made for.  Training moves
the policy away and makes its answers longer or surer, so one figure over a whole run hides a decay
or a rise.  Stages are thirds of the weight versions that wrote anything.  *Accepted per verify* is
the number of drafted tokens that a verification pass takes over, beside the one that it writes
itself: a pass with a draft is one whose first position was drafted.  Weight versions are the
replicates of a stage, and intervals are the jackknife's over them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from steersman.controller.checklist import Checklist
from steersman.controller.evaluate.answer import Answer, Picture, Table, interval_figures, span
from steersman.controller.evaluate.paired import LEVEL, Interval
from steersman.controller.evaluate.plots import over_points
from steersman.controller.report.reading import summarize
from steersman.controller.report.told import checklist_of
from steersman.controller.trace.reader import read
from steersman.controller.trace.records import AttemptEnded, DraftTaken, Record, RunStarted
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats

STAGES = ("first third", "second third", "last third")
METHOD = (
    "The weight versions that wrote anything are cut into thirds. Accepted per verify: drafted "
    "tokens that a verification pass took over, beside the one it writes itself, over the passes "
    "that had a draft; an attempt's counts go to the version that wrote most of it. Intervals are "
    "the jackknife's over weight versions: they tell what other versions of the same run would "
    "have given, not what another run would."
)
LEAST_VERSIONS = 6
"""Two per third: one has no interval."""


@dataclass
class Drafts:
    """What was drafted under one weight version."""

    verifies: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    """Written in all, drafted or not."""


@dataclass
class Drafted:
    """One run."""

    name: str
    by_version: dict[int, Drafts] = field(default_factory=lambda: defaultdict(Drafts))
    lengths: Counter[int] = field(default_factory=Counter)
    """Draft lengths decided, enforced ones."""


@dataclass(frozen=True)
class Stage:
    """A third of a run."""

    versions: tuple[int, int]
    per_verify: Interval
    rate: float
    """Accepted over drafted."""
    drafted_share: float
    """Verification passes over tokens written: how much of the run was drafted for at all."""


def acceptance(paths: Iterable[tuple[str, Path]]) -> Answer:
    """Of traces, each with a name ("": its placement policy)."""
    runs = [drafted(path, name) for name, path in paths]
    rows, sentences = [], []
    lines: list[tuple[int, str, list[tuple[float, float, float, float]]]] = []
    figures: dict[str, Any] = {"runs": []}
    for run in runs:
        stages = stages_of(run)
        change = _change(stages)
        for text, stage in zip(STAGES, stages, strict=True):
            first, last = stage.versions
            per = stage.per_verify
            rows.append(
                [run.name, text, f"{first}-{last}", f"{per.mean:.3f}{span(per.low, per.high)}",
                 f"{stage.rate:.1%}", f"{stage.drafted_share:.1%}"]
            )  # fmt: skip
        each = [s.per_verify for s in stages]
        points = [(float(i), s.mean, s.low, s.high) for i, s in enumerate(each, start=1)]
        lines.append((len(lines), run.name, points))
        sentences.append(_sentence(run, stages, change))
        figures["runs"].append(
            {
                "run": run.name,
                "stages": [
                    {"versions": list(s.versions), "accepted_per_verify":
                     interval_figures(s.per_verify), "accepted_share": s.rate,
                     "verifies_per_token": s.drafted_share} for s in stages
                ],
                "last_minus_first": interval_figures(change),
                "draft_lengths_decided": {str(k): n for k, n in sorted(run.lengths.items())},
            }
        )  # fmt: skip
    head = (
        "run",
        "stage",
        "versions",
        "accepted per verify [95 %]",
        "accepted",
        "verifies / token",
    )
    title = "Acceptance by training stage"
    notes = [
        f"{run.name}: draft lengths decided "
        + ", ".join(f"{k} ({n} times)" for k, n in sorted(run.lengths.items()))
        + "."
        for run in runs
        if run.lengths
    ]
    picture = Picture(
        title,
        "Thirds of the weight versions; whiskers are the jackknife's 95 %.",
        over_points(title, "third of the run", "accepted per verify", lines),
        tuple((i, run.name) for i, run in enumerate(runs)),
    )
    told = " ".join(sentences)
    return Answer(title, [Table(title, head, rows)], told, [picture], notes, figures, METHOD)


def drafted(path: Path, name: str) -> Drafted:
    """What one trace tells."""
    run = Drafted(name)
    for record in read(path):
        _take(run, record)
    run.by_version = {v: d for v, d in sorted(run.by_version.items()) if d.tokens}
    if not any(d.verifies for d in run.by_version.values()):
        raise InvalidInputError(
            f"{path} tells of no drafted token: acceptance needs a run with speculation"
        )
    if len(run.by_version) < LEAST_VERSIONS:
        raise InvalidInputError(
            f"{path} has answers by {len(run.by_version)} weight versions; stages need "
            f"{LEAST_VERSIONS} or more"
        )
    return run


def _take(run: Drafted, record: Record) -> None:
    if isinstance(record, RunStarted):
        run.name = run.name or str(record.config.get("placement", {}).get("name", "?"))
    elif isinstance(record, DraftTaken):
        run.lengths[record.decision.draft_tokens] += record.enforced
    elif isinstance(record, AttemptEnded) and record.spans:
        # an attempt's counts are not told by version: the one that wrote most of it gets them
        version = max(record.spans, key=lambda s: s.end - s.start).weight_version
        books = run.by_version[version]
        books.tokens += record.tokens
        books.verifies += record.drafted_at[0] if record.drafted_at else 0
        books.drafted += sum(record.drafted_at)
        books.accepted += sum(record.accepted_at)


def stages_of(run: Drafted) -> list[Stage]:
    """The three."""
    found = []
    for versions in np.array_split(np.array(list(run.by_version)), len(STAGES)):
        own = [run.by_version[v] for v in versions.tolist()]
        accepted = np.array([d.accepted for d in own], dtype=np.float64)
        verifies = np.array([d.verifies for d in own], dtype=np.float64)
        whole = sum(d.drafted for d in own)
        found.append(
            Stage(
                (int(versions[0]), int(versions[-1])),
                ratio_of_sums(accepted, verifies),
                float(accepted.sum() / whole) if whole else math.nan,
                float(verifies.sum() / max(sum(d.tokens for d in own), 1)),
            )
        )
    return found


def ratio_of_sums(above: Floats, below: Floats) -> Interval:
    """Sum over sum, with the delete-one jackknife's interval."""
    from scipy.special import stdtrit

    n, whole = len(above), float(below.sum())
    if not whole:
        return Interval(math.nan, math.nan, math.nan, math.nan, n)
    middle = float(above.sum()) / whole
    rest = below.sum() - below
    if n < 2 or not (rest > 0).all():
        return Interval(middle, math.nan, math.nan, math.nan, n)
    left_out = (above.sum() - above) / rest
    error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2)) * error
    return Interval(middle, middle - half, middle + half, error * math.sqrt(n), n)


def _change(stages: Sequence[Stage]) -> Interval:
    """The last third's accepted per verify less the first's."""
    from scipy.special import stdtrit

    first, last = stages[0].per_verify, stages[-1].per_verify
    error = math.hypot(first.sd / math.sqrt(first.seeds), last.sd / math.sqrt(last.seeds))
    freedom = min(first.seeds, last.seeds) - 1  # the smaller sample's: on the safe side of Welch's
    half = float(stdtrit(freedom, 0.5 + LEVEL / 2)) * error
    middle = last.mean - first.mean
    return Interval(middle, middle - half, middle + half, math.nan, first.seeds + last.seeds)


def _sentence(run: Drafted, stages: Sequence[Stage], change: Interval) -> str:
    first, last = stages[0].per_verify.mean, stages[-1].per_verify.mean
    if math.isnan(change.low):
        empty = [t for t, s in zip(STAGES, stages, strict=True) if math.isnan(s.per_verify.mean)]
        missing = f"nothing was drafted in the {', '.join(empty)}" if empty else "too few versions"
        return f"{run.name}: no change over training can be told, {missing}."
    if change.low > 0:
        said = "rises over training"
    elif change.high < 0:
        said = "falls over training"
    else:
        said = "does not change over training that these versions could tell"
    return (
        f"{run.name}: acceptance {said}, from {first:.3f} to {last:.3f} per verify "
        f"(by {change.mean:+.3f}{span(change.low, change.high, '+.3f')})."
    )


def checklist_of_traces(paths: Sequence[tuple[str, Path]]) -> Checklist:
    """What the traces tell of themselves; there is no baseline, stages are compared."""
    made = checklist_of([summarize(read(path)) for _, path in paths])
    return made.told(
        {
            "baseline": "the first third of the same run",
            "unit": "drafted tokens accepted per verification pass",
            "statistic": "sums over a third of the weight versions; jackknife over versions, 95 %",
        }
    )
