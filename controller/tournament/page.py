"""The HTML page of a tournament: one table of ratios, those that change work apart, all figures."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from steersman.controller.checklist import checklist_html
from steersman.controller.report.html import table, write_document
from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.standing import EXACT, Row
from steersman.controller.tournament.told import checklist_of
from steersman.controller.tournament.workloads import arenas

TIER = "simulation"
SAME = (
    "Every answer is drawn from the same distribution as the default's, by one weight version, and "
    "all are given."
)
OTHER = (
    "Work is put off, cut or chosen: at equal useful work. What it does to the samples is in the "
    "table of figures: class, kept length, wasted tokens."
)
HEAD = (
    "policy", "class", "time", "95 %", "efficiency", "of clairvoyant", "useful", "kept / asked",
    "wasted", "tick p99",
)  # fmt: skip
"""What `figures` says."""
OPTIONS_STYLE = (
    "display:inline-block;font-size:.85em;white-space:normal;width:max-content;max-width:30ch"
)
"""Cells do not break: a long name would push the figures out of sight."""


def write_page(
    out: Path, rows: Sequence[Row], settings: Settings, told: Mapping[str, str] | None = None
) -> None:
    """Write one self-contained page."""
    body = _head(rows, settings)
    for section in dict.fromkeys(row.section for row in rows):
        own = [row for row in rows if row.section == section]
        body += _matrices(section, own)
    body += _figures(rows)
    body += checklist_html(checklist_of(rows, settings, told))
    write_document(out, "Steersman tournament", body)


def _head(rows: Sequence[Row], settings: Settings) -> str:
    policies = len({row.policy for row in rows})
    workloads = len({row.workload for row in rows})
    seeds = max((row.seeds for row in rows), default=0)
    quick = " A quick one: few steps, few seeds, wide intervals." if settings.quick else ""
    return (
        f'<header><p class="kicker">Steersman tournament <b class="tier">tier: {TIER}</b></p>'
        f"<h1>{policies} policies on {workloads} workloads</h1>"
        f'<p class="sub">{seeds} seeds each, paired: the same trajectories for every policy.'
        f"{quick}</p></header>"
    )


def _matrices(section: str, rows: Sequence[Row]) -> str:
    """Of one kind of policies: those that change nothing, and the others."""
    parts = ""
    for exact, note in ((True, SAME), (False, OTHER)):
        own = exact_ones(rows, exact)
        if own:
            title = f"{section.capitalize()}: {'the same samples' if exact else 'other samples'}"
            parts += _matrix(title, own, note)
    return parts


def _matrix(title: str, rows: Sequence[Row], note: str) -> str:
    """Policies by workloads."""
    by_pair = {(row.policy, row.workload): row for row in rows}
    workloads, policies = workloads_of(rows), in_order(rows)
    lines = []
    for policy in policies:
        own = [by_pair.get((policy, workload)) for workload in workloads]
        taken = [row for row in own if row is not None]
        lines.append([entry_html(policy), f"{mean_ratio(taken):.3f}", *(_cell(row) for row in own)])
    head = ["policy", "mean", *(escape(w) for w in workloads)]
    return (
        f"<section><h2>{title}</h2><p>{note} Time over the default's, below 1 is faster; bold "
        "where the 95 % interval over the seeds leaves no doubt. Mean: geometric.</p>"
        f"{table('figures compact', head, lines)}</section>"
    )


def _cell(row: Row | None) -> str:
    if row is None:
        return '<span class="none">-</span>'
    low, high = row.ci95
    css = "good" if high < 1 else "bad" if low > 1 else ""
    interval = "" if math.isnan(low) else f' title="95 %: {low:.3f} to {high:.3f}"'
    return f'<span class="{css}"{interval}>{row.makespan_ratio:.3f}</span>'


def _figures(rows: Sequence[Row]) -> str:
    known, parts = arenas(), []
    for workload in dict.fromkeys(row.workload for row in rows):
        own = sorted((r for r in rows if r.workload == workload), key=lambda r: r.makespan_ratio)
        about = known[workload].summary if workload in known else "from a file"
        lines = [
            [entry_html(row.policy), *(escape(cell) for cell in figures(row)[1:])] for row in own
        ]
        parts.append(
            f"<h3>{escape(workload)}</h3><p>{escape(about)}</p>"
            f"{table('figures compact', HEAD, lines)}"
        )
    return f"<section><h2>All figures</h2>{''.join(parts)}</section>"


def entry_html(name: str) -> str:
    """An entry's name: the policy, and below it, in lines of bounded width, what differs."""
    policy, comma, rest = name.partition(",")
    if not comma:
        return escape(policy)
    wrapped = escape(rest).replace(",", ",<wbr/>")
    return f'{escape(policy)},<br/><span class="unit" style="{OPTIONS_STYLE}">{wrapped}</span>'


def figures(row: Row) -> list[str]:
    """Of a row, as text."""
    low, high = row.ci95
    clairvoyant = row.efficiency_vs_clairvoyant
    return [
        row.policy,
        row.correctness,
        f"{row.makespan_ratio:.3f}",
        "-" if math.isnan(low) else f"{low:.3f}-{high:.3f}",
        f"{row.efficiency:.3f}",
        "-" if clairvoyant is None else f"{clairvoyant:.3f}",
        f"{row.useful_tokens:,.0f}",
        f"{row.mean_length_ratio:.3f}",
        f"{row.wasted_share:.1%}",
        f"{row.tick_ms_p99:.1f} ms",
    ]


def exact_ones(rows: Sequence[Row], exact: bool) -> list[Row]:
    """Rows of the policies that are exact on every workload, or of the others."""
    mixed = {row.policy for row in rows if row.correctness != EXACT}
    return [row for row in rows if (row.policy not in mixed) == exact]


def workloads_of(rows: Sequence[Row]) -> list[str]:
    """In the order of their first appearance."""
    return list(dict.fromkeys(row.workload for row in rows))


def in_order(rows: Sequence[Row]) -> list[str]:
    """Policies, the fastest in the mean first."""

    def mean(policy: str) -> float:
        return mean_ratio([row for row in rows if row.policy == policy])

    return sorted(dict.fromkeys(row.policy for row in rows), key=mean)


def mean_ratio(rows: Sequence[Row]) -> float:
    """Geometric mean over workloads."""
    logs = [math.log(row.makespan_ratio) for row in rows]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")
