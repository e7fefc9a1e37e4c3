"""What a diagnostic answers: a table, pictures, one sentence, and the figures for machines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from steersman.controller.evaluate.paired import Interval, Ratio

BAR = 21
"""Characters of an interval drawn in a terminal; odd, so that its middle is one of them."""


@dataclass(frozen=True)
class Table:
    """Cells are plain text; the first of a row names it."""

    title: str
    head: tuple[str, ...]
    rows: list[list[str]]


@dataclass(frozen=True)
class Picture:
    """For the page."""

    title: str
    note: str
    svg: str
    names: tuple[tuple[int, str], ...] = ()
    """Of its lines, for a legend: which of the colours, and whose."""


CURVES = (
    "A rising curve is fitted to each run's evaluations, since the first lucky one would say that "
    "a quality came cheap. Runs are paired by seed. A run that never got to a quality counts with "
    "all it spent: a ratio is then a bound, marked <= or >= (~ where both sides missed it). "
    "Intervals hold for one comparison that was named beforehand, not for the best of many."
)


@dataclass(frozen=True)
class Answer:
    """Of one diagnostic."""

    title: str
    tables: list[Table]
    verdict: str
    """One sentence."""
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the figures rest on."""
    figures: dict[str, Any] = field(default_factory=dict)
    """For `--json`."""
    method: str = CURVES
    """How it was found, for somebody who reads the page only."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        plain = {"title": self.title, "verdict": self.verdict, "notes": self.notes, **self.figures}
        found: dict[str, Any] = known(plain)
        return found


def known(value: Any) -> Any:
    """What is not finite becomes null."""
    if isinstance(value, dict):
        return {key: known(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [known(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def amount(value: float) -> str:
    """A cost: 1 234 567, 12.3."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def ratio_text(found: Ratio) -> str:
    """0.70 [0.61, 0.80], with its bound."""
    sign = "" if found.bound == "=" else f"{found.bound} "
    middle, low, high = found.log.exp()
    return f"{sign}{middle:.3f}{span(low, high)}"


def interval_text(found: Interval, form: str = "+.3f") -> str:
    """Of a difference."""
    return f"{found.mean:{form}}{span(found.low, found.high, form)}"


def span(low: float, high: float, form: str = ".3f") -> str:
    """An interval in brackets; one seed has none."""
    return " [no interval]" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]"


def ratio_figures(found: Ratio) -> dict[str, Any]:
    """For machines."""
    middle, low, high = found.log.exp()
    return {
        "ratio": middle,
        "ci95": [low, high],
        "bound": found.bound,
        "pairs": found.seeds,
        "reached": found.reached,
        "baseline_reached": found.base_reached,
        "log_sd": found.log.sd,
    }


def interval_figures(found: Interval) -> dict[str, Any]:
    """For machines."""
    return {"mean": found.mean, "ci95": [found.low, found.high], "pairs": found.seeds}


def bar(low: float, middle: float, high: float, limits: tuple[float, float], mark: float) -> str:
    """An interval as text, on an axis from `limits`, with a `|` at `mark`: `..-o--|.....`."""
    first, last = limits
    width = (last - first) or 1.0

    def at(value: float) -> int:
        return min(max(round((value - first) / width * (BAR - 1)), 0), BAR - 1)

    cells = ["·"] * BAR
    cells[at(mark)] = "|"
    if not math.isnan(low):
        for i in range(at(low), at(high) + 1):
            cells[i] = "-" if cells[i] == "·" else "+"
    cells[at(middle)] = "o"
    return "".join(cells)


def bars(intervals: Sequence[tuple[float, float, float]], mark: float) -> list[str]:
    """Intervals (middle, low, high) under each other, on one axis that holds `mark`."""
    values = [v for each in intervals for v in each if math.isfinite(v)] + [mark]
    limits = (min(values), max(values))
    return [bar(low, middle, high, limits, mark) for middle, low, high in intervals]
