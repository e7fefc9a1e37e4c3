"""All games of a tournament, played by worker processes, each written down as it ends.

Seeds come first: after an interruption every policy has been on every workload equally often, and
the table so far is fair.  A game that fails is reported and left out; the others go on.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from steersman.controller.tournament.arena import Arena, PromptArena
from steersman.controller.tournament.cell import Cell, Game, Settings
from steersman.controller.tournament.entries import Entry
from steersman.controller.tournament.play import play, takes_part
from steersman.controller.tournament.store import Store
from steersman.controller.tournament.workers import outcomes


@dataclass(frozen=True)
class Failure:
    """A game without a result."""

    game: Game
    why: str


def games(
    arenas: Sequence[Arena | PromptArena], entries: Sequence[Entry], seeds: int
) -> list[Game]:
    """Of every policy on every workload that it applies to."""
    return [
        Game(arena.name, entry.section, entry.name, seed)
        for seed in range(seeds)
        for arena in arenas
        for entry in entries
        if takes_part(entry, arena)
    ]


def play_all(
    wanted: Iterable[Game],
    settings: Settings,
    store: Store,
    workers: int,
    after_game: Callable[[], object] = lambda: None,
) -> list[Failure]:
    """Play what the store does not hold yet; returns the games that failed."""
    missing = [game for game in wanted if game not in store]
    failures: list[Failure] = []
    with closing(outcomes(partial(_play, settings=settings), missing, workers)) as played:
        for outcome in played:
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                store.add(outcome)
            after_game()
    return failures


def _play(game: Game, settings: Settings) -> Cell | Failure:
    try:
        return play(game, settings)
    except Exception as error:
        # one policy's bug must not cost the hours of the others
        return Failure(game, f"{type(error).__name__}: {error}")
