"""The table of a tournament: each policy on each workload, over all seeds.

The ratio is the time per useful work over that of the workload's default, seed by seed on the same
trajectories, so that a policy that cuts, discards or replaces work is compared at equal useful
work.  The interval (95 %) is Student's, of the mean of the log-ratios over the seeds.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from steersman.controller.tournament.cell import Cell
from steersman.controller.tournament.entries import DEFAULTS

STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantile of Student's distribution with 1, 2, ... degrees of freedom."""
EXACT, CORRECTED = "exact", "corrected"


@dataclass(frozen=True)
class Row:
    """One policy on one workload."""

    workload: str
    policy: str
    correctness: str
    """Of the answers, as played."""
    makespan_ratio: float
    """Below 1 is faster than the default."""
    ci95: tuple[float, float]
    efficiency: float
    """The largest lower bound over what was achieved."""
    efficiency_vs_clairvoyant: float | None
    useful_tokens: float
    """Per seed; for prompt policies, informative groups."""
    mean_length_ratio: float
    """Kept over asked, of answers in their own step: below 1 if long ones are put off or lost."""
    tick_ms_p99: float
    seeds: int
    section: str
    wasted_share: float
    """Of the tokens generated: not in an answer."""


def rows(cells: Iterable[Cell], streams: Collection[str] = ()) -> list[Row]:
    """Sorted by workload and policy in the order of the cells' first appearance.

    `streams` are the workloads whose weights change while answers are written.
    """
    by_pair: dict[tuple[str, str, str], dict[int, Cell]] = defaultdict(dict)
    for cell in cells:
        game = cell.game
        by_pair[game.workload, game.section, game.policy][game.seed] = cell
    made = []
    for (workload, section, _), own in by_pair.items():
        base = by_pair.get((workload, section, DEFAULTS[section]), {})
        paired = [(own[seed], base[seed]) for seed in sorted(own) if seed in base]
        if paired:
            own_cells, base_cells = zip(*paired, strict=True)
            made.append(_row(own_cells, base_cells, stream=workload in streams))
    return made


def _row(own: Sequence[Cell], base: Sequence[Cell], stream: bool) -> Row:
    logs = np.log([_cost(a) / _cost(b) for a, b in zip(own, base, strict=True)])
    mean, half = float(logs.mean()), _half_width(logs)
    seconds = np.array([c.seconds for c in own])
    known = [c.clairvoyant_s for c in own if c.clairvoyant_s is not None]
    first = own[0]
    return Row(
        workload=first.game.workload,
        policy=first.game.policy,
        correctness=_as_played(own, stream),
        makespan_ratio=float(np.exp(mean)),
        ci95=(float(np.exp(mean - half)), float(np.exp(mean + half))),
        efficiency=float(np.mean([c.bound_s for c in own] / seconds)),
        efficiency_vs_clairvoyant=(
            float(np.mean(np.array(known) / seconds)) if len(known) == len(own) else None
        ),
        useful_tokens=float(np.mean([c.useful for c in own])),
        mean_length_ratio=float(np.mean([c.mean_length_kept / c.mean_length_asked for c in own])),
        tick_ms_p99=float(np.median([c.tick_ms_p99 for c in own])),
        seeds=len(own),
        section=first.game.section,
        wasted_share=float(np.mean([c.wasted_share for c in own])),
    )


def _as_played(cells: Sequence[Cell], stream: bool) -> str:
    """The policy's class, or "exact" where a placement could mix weight versions but never did."""
    declared, placed = cells[0].correctness, cells[0].game.section == "placement"
    touched = any(cell.deferred or cell.stopped for cell in cells)  # a stack may also stop
    return as_played(declared, placed and not stream and not touched)


def as_played(declared: str, one_version: bool) -> str:
    """The class of answers that were all given whole, or not, by the weights of their step."""
    return EXACT if declared == CORRECTED and one_version else declared


def _cost(cell: Cell) -> float:
    """Seconds per useful work."""
    return cell.seconds / max(cell.useful, 1.0)


def _half_width(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    if len(logs) < 2:
        return float("nan")
    freedom = len(logs) - 1
    student = STUDENT_975[freedom - 1] if freedom <= len(STUDENT_975) else 1.96
    return float(student * logs.std(ddof=1) / np.sqrt(len(logs)))
