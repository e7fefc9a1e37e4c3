"""Long games that were made up."""

from collections.abc import Mapping

from steersman.controller.regret.games import LongGame, Played
from steersman.controller.tournament.workers import count_step


def made_up_games(workload: str, seconds: Mapping[str, list[list[float]]]) -> list[Played]:
    """Of entries by their seconds, (seeds, steps)."""
    return [
        Played(
            game=LongGame(workload, entry, seed, len(row)),
            seconds=tuple(row),
            correctness="exact",
            answers=128 * len(row),
            tokens=100_000,
            deferred=3,
            moves=7,
            kept_over_asked=0.98,
            tick_ms_p99=2.5,
        )
        for entry, rows in seconds.items()
        for seed, row in enumerate(rows)
    ]


def counted_steps(steps: int) -> int:
    """A game that is nothing but its steps."""
    for _ in range(steps):
        count_step()
    return steps
