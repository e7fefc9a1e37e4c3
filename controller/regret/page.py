"""The page of a long run: regret over the steps, seconds over the best's, and all figures."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from steersman.controller.checklist import checklist_html
from steersman.controller.regret.study import (
    CHANGE_HEAD,
    HEAD,
    Finding,
    change_figures,
    figures,
    sentences,
)
from steersman.controller.regret.told import checklist_of
from steersman.controller.report.html import colour, dash, figure, legend, table, write_document
from steersman.controller.report.svg import Panel, Point
from steersman.controller.tournament.page import TIER, entry_html

SMOOTH = 10
"""Steps of a running mean, through which a trend can be seen."""


def write_page(
    out: Path, findings: Sequence[Finding], told: Mapping[str, str] | None = None
) -> None:
    """Write one self-contained page."""
    judged = findings[0].judged
    head = (
        f'<header><p class="kicker">Steersman regret <b class="tier">tier: {TIER}</b></p>'
        f"<h1>{escape(judged.partition(',')[0])} over many steps</h1>"
        f'<p class="sub">{escape(judged.replace(",", ", "))}, step by step on the same '
        "trajectories as the fixed entries.</p></header>"
    )
    sections = "".join(_section(one) for one in findings)
    checklist = checklist_html(checklist_of(findings, told))
    write_document(out, "Steersman regret", head + sections + checklist)


def _section(one: Finding) -> str:
    names = [line.entry.replace(",", ", ") for line in one.lines]
    seeds = f"{len(one.seeds)} seed{'s' if len(one.seeds) > 1 else ''}"
    lines = [
        [entry_html(line.entry), *(escape(text) for text in figures(line, one)[1:])]
        for line in one.lines
    ]
    regimes = [
        [step, escape(regime), entry_html(best), *others]
        for step, regime, best, *others in map(change_figures, one.changes)
    ]
    said = "".join(f"<p>{escape(text)}</p>" for text in sentences(one))
    return (
        f"<section><h2>{escape(one.workload)}</h2>"
        f"<p>{escape(one.summary)}; {one.steps} steps, {seeds}.</p>{said}"
        + figure(
            "Cumulative regret",
            f"Seconds more than {one.best}, the best fixed entry, so far; mean over seeds. A line "
            "that flattens belongs to a policy that learns.",
            _cumulative(one) + legend(names),
            wide=True,
        )
        + figure(
            "Seconds over the best fixed entry's",
            f"Running mean over {SMOOTH} steps; below 1 is faster than {one.best}.",
            _ratios(one) + legend(names),
            wide=True,
        )
        + "<h3>All entries</h3><p>Regret, its growth and its share of a step's seconds (first, "
        "second and last third) are against the best fixed entry.</p>"
        + table("figures compact", HEAD, lines)
        + "<h3>Regimes</h3>"
        + table("figures compact", CHANGE_HEAD, regimes)
        + "</section>"
    )


def _cumulative(one: Finding) -> str:
    curves = [[0.0, *line.regret.cumulative_s] for line in one.lines]
    return _plot(one, "Cumulative regret", "seconds", curves, first=0)


def _ratios(one: Finding) -> str:
    kernel = np.ones(min(SMOOTH, one.steps))
    smooth = {
        line.entry: np.convolve(np.mean(line.step_s, axis=0), kernel, "valid") for line in one.lines
    }
    curves = [(smooth[line.entry] / smooth[one.best]).tolist() for line in one.lines]
    return _plot(one, "Seconds over the best's", "ratio", curves, first=len(kernel))


def _plot(
    one: Finding, title: str, y_label: str, curves: Sequence[Sequence[float]], first: int
) -> str:
    """Curves that begin after `first` steps; those of the judged entry are drawn last."""
    values = [y for curve in curves for y in curve]
    low, high = min(values), max(values)
    room = 0.06 * ((high - low) or 1.0)
    panel = Panel(
        (0.0, float(one.steps)), (low - room, high + room), title, "steps", y_label,
        x_whole=True, width=1040, height=330, left=70,
    )  # fmt: skip
    for change in one.changes[1:]:
        panel.upright(float(change.step), change.regime)
    for i in reversed(range(len(curves))):
        points: list[Point] = [(float(first + t), y) for t, y in enumerate(curves[i])]
        panel.curve(points, colour(i), dash(i))
    return panel.svg()
