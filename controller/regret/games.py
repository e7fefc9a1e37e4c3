"""One long game: an entry on a workload, drawn from one seed; its seconds step by step."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from steersman.controller.regret.long_runs import long_run
from steersman.controller.replay.run import Result, replay
from steersman.controller.replay.summary import makespans
from steersman.controller.tournament.entries import DEFAULTS, Entry, entries, entry
from steersman.controller.tournament.standing import as_played
from steersman.controller.tournament.workers import count_step, outcomes
from steersman.estimators.errors import InvalidInputError


@dataclass(frozen=True)
class LongGame:
    """Which game."""

    workload: str
    entry: str
    seed: int
    steps: int


@dataclass(frozen=True)
class Played:
    """What it told."""

    game: LongGame
    seconds: tuple[float, ...]
    """(steps,) of rollout.  The final drain of what was put off is spread over them."""
    correctness: str
    """Of the answers, as played."""
    answers: int
    tokens: int
    """Of the answers."""
    deferred: int
    moves: int
    kept_over_asked: float
    """Mean length of answers in their own step over that asked for."""
    tick_ms_p99: float
    """Real milliseconds of a decision, on this machine."""


@dataclass(frozen=True)
class Failure:
    """A game without a result."""

    game: LongGame
    why: str


def contestants(chosen: Sequence[str]) -> tuple[str, list[str]]:
    """The judged entry, which is the first, and the fixed ones, the default among them.

    Raises `InvalidInputError` for one that cannot be compared step by step.
    """
    if not chosen:
        raise InvalidInputError("no policy to judge; valid: --policy ENTRY, the judged one first")
    known = entries(chosen)
    for one in sorted(known, key=lambda one: one.is_default):  # a default may not be of the chosen
        _check(one)
    judged = entries(chosen[:1])[-1].name
    if judged == DEFAULTS["placement"]:
        raise InvalidInputError(
            f"{judged} is what the judged one is compared with; valid: another one first"
        )
    return judged, [one.name for one in known if one.name != judged]


def _check(one: Entry) -> None:
    if one.section != "placement":
        raise InvalidInputError(
            f"{one.name} is a {one.section} policy; valid: placement policies, whose steps take "
            "time for the same trajectories"
        )
    if one.oversamples:
        raise InvalidInputError(
            f"{one.name} asks for more groups than a step has, so its steps are not of the same "
            "trajectories; valid: placement policies that do not"
        )


def play_all(
    games: Sequence[LongGame], workers: int, on_steps: Callable[[int], object]
) -> tuple[list[Played], list[Failure]]:
    """All of them, in worker processes; `on_steps` is told how many steps are done."""
    played, failures = list[Played](), list[Failure]()
    with closing(outcomes(_play, games, workers, on_steps)) as coming:
        for outcome in coming:
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                played.append(outcome)
    return played, failures


def play(game: LongGame) -> Played:
    """Play it."""
    run, one = long_run(game.workload), entry("placement", game.entry)
    workload = run.make(game.seed, game.steps)
    options = replace(run.options, seed=game.seed)
    result = replay(workload, run.plan, one.config(run.overrides), options, count_step)
    return _played(game, one, result)


def _played(game: LongGame, one: Entry, result: Result) -> Played:
    steps = result.steps
    touched = any(step.deferred or step.stopped for step in steps)
    own = [step for step in steps if step.asked and np.isfinite(step.mean_length_kept)]
    kept = sum(step.mean_length_kept * step.asked for step in own)
    asked = sum(step.mean_length_asked * step.asked for step in own)
    return Played(
        game=game,
        seconds=tuple(makespans(result, game.steps).tolist()),
        correctness=as_played(one.correctness.name.lower(), not touched),
        answers=sum(step.finished for step in steps),
        tokens=sum(step.tokens for step in steps),
        deferred=sum(step.deferred for step in steps),
        moves=sum(step.moves for step in steps),
        kept_over_asked=kept / asked if asked else float("nan"),
        tick_ms_p99=result.tick_ms_p99,
    )


def _play(game: LongGame) -> Played | Failure:
    try:
        return play(game)
    except Exception as error:
        # one policy's bug must not cost the minutes of the others
        return Failure(game, f"{type(error).__name__}: {error}")
