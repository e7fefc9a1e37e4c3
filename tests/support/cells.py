"""Results of made-up games."""

import msgspec

from steersman.controller.tournament.cell import Cell, Game


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
