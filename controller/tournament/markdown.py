"""The tables of ratios as Markdown, for a README or an issue."""

import math
from collections.abc import Sequence

from steersman.controller.checklist import Checklist, checklist_markdown
from steersman.controller.tournament.page import exact_ones, in_order, mean_ratio, workloads_of
from steersman.controller.tournament.standing import Row
from steersman.estimators.lifecycle import CorrectnessClass

CLASSES = [level.name.lower() for level in sorted(CorrectnessClass)]
WORKLOADS_A_TABLE = 8
"""Columns that still fit a page."""


def write_markdown(rows: Sequence[Row], checklist: Checklist | None = None) -> str:
    """Exact policies first, then those that change work; one table for each kind of policy.

    The reporting checklist comes last.
    """
    parts = []
    for section in dict.fromkeys(row.section for row in rows):
        own = [row for row in rows if row.section == section]
        for exact in (True, False):
            some = exact_ones(own, exact)
            if some:
                parts += _tables(some, section, exact)
    if checklist is not None:
        parts.append(checklist_markdown(checklist))
    return "\n".join(parts)


def _tables(rows: Sequence[Row], section: str, exact: bool) -> list[str]:
    title = f"**{section}, {'exact' if exact else 'not exact'}**"
    workloads, policies = workloads_of(rows), in_order(rows)
    by_pair = {(row.policy, row.workload): row for row in rows}
    lines = [title, ""]
    for first in range(0, len(workloads), WORKLOADS_A_TABLE):
        some = workloads[first : first + WORKLOADS_A_TABLE]
        lines.append("| | mean | " + " | ".join(f"`{name}`" for name in some) + " |")
        lines.append("|---|--:|" + "--:|" * len(some))
        for policy in policies:
            own = [row for row in rows if row.policy == policy]
            worst = max((row.correctness for row in own), key=CLASSES.index)
            code = "`" + policy.replace("|", "\\|") + "`"  # a bar would end the cell
            name = code if exact else f"{code} ({worst})"
            cells = [_cell(by_pair.get((policy, workload))) for workload in some]
            lines.append(f"| {name} | {mean_ratio(own):.2f} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _cell(row: Row | None) -> str:
    """Bold where the interval over the seeds is on one side of 1, and what is written is not 1."""
    if row is None:
        return "-"
    low, high = row.ci95
    sure = not math.isnan(low) and (high < 1 or low > 1)
    text = f"{row.makespan_ratio:.2f}"
    return f"**{text}**" if sure and text != "1.00" else text
