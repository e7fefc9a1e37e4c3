"""Results of made-up games."""

import msgspec

from steersman.controller.tournament.cell import Cell, Game
from steersman.controller.tournament.standing import Row


def cell(
    policy: str,
    seed: int,
    seconds: float,
    useful: float = 1000.0,
    workload: str = "strong_tail",
    **more: object,
) -> Cell:
    """Of a placement policy; figures by name."""
    figures = {
        "game": Game(workload, "placement", policy, seed),
        "correctness": "exact",
        "seconds": seconds,
        "useful": useful,
        "tokens": 1200,
        "wasted_share": 0.0,
        **dict.fromkeys(
            ("finished", "truncated", "stopped", "deferred", "restarted", "expired", "moves"), 0
        ),
        "preemptions": 0,
        "mean_length_asked": 100.0,
        "mean_length_kept": 90.0,
        "bound_s": 5.0,
        "clairvoyant_s": 8.0,
        "tick_ms_p99": 3.0,
        **more,
    }
    return msgspec.convert(figures, Cell)


def table_row(
    policy: str,
    workload: str,
    ratio: float,
    ci95: tuple[float, float] = (0.1, 10.0),
    **more: object,
) -> Row:
    """A row of the table."""
    figures = {
        "workload": workload,
        "policy": policy,
        "correctness": "exact",
        "makespan_ratio": ratio,
        "ci95": ci95,
        "efficiency": 0.8,
        "efficiency_vs_clairvoyant": 0.9,
        "useful_tokens": 12345.4,
        "mean_length_ratio": 0.75,
        "tick_ms_p99": 3.21,
        "seeds": 5,
        "section": "placement",
        "wasted_share": 0.125,
        **more,
    }
    return msgspec.convert(figures, Row)
