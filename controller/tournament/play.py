"""One game: an entry on one workload drawn from one seed."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from steersman.controller.config import Config
from steersman.controller.plugins import build
from steersman.controller.replay.bounds import bounds
from steersman.controller.replay.intervals import ENDINGS
from steersman.controller.replay.run import Result, replay
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament.arena import Arena, PromptArena
from steersman.controller.tournament.cell import Cell, Game, Settings
from steersman.controller.tournament.clairvoyant import clairvoyant_makespan
from steersman.controller.tournament.entries import SECTIONS, Entry, entry
from steersman.controller.tournament.prompt_run import PromptRunResult, run_prompts
from steersman.controller.tournament.workloads import chosen_arenas

OWN_ENDS = tuple(ENDINGS.index(name) for name in ("finished", "truncated"))


def takes_part(one: Entry, arena: Arena | PromptArena) -> bool:
    """Whether a policy applies to a workload."""
    if isinstance(arena, PromptArena):
        return one.section == "prompts"
    if one.oversamples and arena.is_stream:
        return False  # a stream has no batch to cut
    return one.section in arena.sections


def play(game: Game, settings: Settings) -> Cell:
    """Play it."""
    arena = _arena(game.workload, settings)
    one = entry(game.section, game.policy)
    config = one.config(arena.overrides)
    if isinstance(arena, PromptArena):
        return _prompt_cell(game, one, arena, config)
    workload = _workload(game.workload, game.seed, settings)
    options = replace(arena.options, seed=game.seed)
    if one.oversamples:
        options = replace(options, groups_wanted=len(workload.steps[0].prompt_key))
    return _cell(game, one, arena, workload, replay(workload, arena.plan, config, options))


def _cell(game: Game, one: Entry, arena: Arena, workload: Workload, run: Result) -> Cell:
    steps, first, last = run.steps, run.steps[0], run.steps[-1]
    bound_s, clairvoyant_s = _references(game, arena, workload, whole=one.oversamples)
    answered = sum(step.tokens for step in steps)
    discarded = sum(step.discarded_tokens for step in steps)
    useful = _useful_tokens(run)
    asked = np.concatenate([step.length for step in workload.steps])
    stream = arena.is_stream
    seconds = (
        last.start_s + last.makespan_s - first.start_s
        if stream
        else sum(step.makespan_s for step in steps)
    )
    own = [step for step in steps if step.asked and np.isfinite(step.mean_length_kept)]
    kept = sum(s.mean_length_kept * s.asked for s in own) / max(sum(s.asked for s in own), 1)
    return Cell(
        game=game,
        correctness=one.correctness.name.lower(),
        seconds=float(seconds),
        useful=useful,
        tokens=answered + discarded,
        wasted_share=1.0 - useful / max(answered + discarded, 1),
        finished=sum(step.finished for step in steps),
        truncated=sum(step.truncated for step in steps),
        stopped=sum(step.stopped for step in steps),
        deferred=sum(step.deferred for step in steps),
        restarted=sum(step.restarted for step in steps),
        expired=sum(step.expired for step in steps),
        moves=sum(step.moves for step in steps),
        preemptions=run.preemptions,
        mean_length_asked=float(asked.mean()),
        mean_length_kept=kept if own else float("nan"),
        bound_s=bound_s,
        clairvoyant_s=clairvoyant_s,
        tick_ms_p99=run.tick_ms_p99,
    )


def _prompt_cell(game: Game, one: Entry, arena: PromptArena, config: Config) -> Cell:
    policy = build(SECTIONS[game.section], one.policy, one.options)
    run = run_prompts(
        arena.bank(game.seed),
        policy,
        arena.plan,
        config,
        steps=arena.steps,
        groups_wanted=arena.groups_wanted,
        candidates_per_step=arena.candidates_per_step,
        seed=game.seed,
    )
    trained = sum(step.tokens_trained for step in run.steps)
    own = _bound_s(run.workload, arena)
    length = np.concatenate([step.length for step in run.workload.steps])
    timed = run.replay
    return Cell(
        game=game,
        correctness=one.correctness.name.lower(),
        seconds=run.seconds,
        useful=float(run.informative_groups),
        tokens=run.tokens,
        wasted_share=1.0 - trained / max(run.tokens, 1),
        finished=run.samples,
        truncated=sum(step.truncated for step in timed.steps),
        stopped=0,
        deferred=0,
        restarted=0,
        expired=0,
        moves=sum(step.moves for step in timed.steps),
        preemptions=timed.preemptions,
        mean_length_asked=float(length.mean()),
        mean_length_kept=_mean_trained(run, float(length.mean())),
        bound_s=own,
        clairvoyant_s=None,
        tick_ms_p99=timed.tick_ms_p99,
    )


def _mean_trained(run: PromptRunResult, otherwise: float) -> float:
    samples = sum(step.samples_trained for step in run.steps)
    return sum(step.tokens_trained for step in run.steps) / samples if samples else otherwise


def _bound_s(workload: Workload, arena: Arena | PromptArena, whole: bool = False) -> float:
    """Sum over the steps of the largest lower bound; of all as one step, where steps overlap."""
    steps = [workload.groups().whole] if whole else workload.steps
    return sum(bounds(s.length, s.prompt_tokens, arena.plan).best_s for s in steps)


def _references(
    game: Game, arena: Arena, workload: Workload, whole: bool
) -> tuple[float, float | None]:
    """The lower bound, and the best schedule that knows the lengths.

    Where groups are carried from step to step, answers cut or tokens drafted, nobody has said what
    is best.
    """
    if whole or arena.is_stream or game.section != "placement":
        whole = whole or arena.is_stream
        return _bound_s(workload, arena, whole), None
    key = (game.workload, game.seed, len(workload.steps), arena.plan.described)
    if key not in _KNOWN:
        latency_s = arena.options.latency_s
        best = [clairvoyant_makespan(step, arena.plan, latency_s) for step in workload.steps]
        _KNOWN.clear()
        _KNOWN[key] = (_bound_s(workload, arena), sum(each.makespan_s for each in best))
    return _KNOWN[key]


_KNOWN: dict[tuple[str, int, int, str], tuple[float, float]] = {}
"""The references of the present workload and seed: its games are played one after another."""


def _useful_tokens(run: Result) -> float:
    """Of answers that reached their own end and do not merely repeat themselves."""
    attempts = run.attempts
    ends = np.isin(attempts.ending, OWN_ENDS) & ~run.loops[attempts.trajectory]
    return float(attempts.last_token[ends].sum())


@lru_cache(maxsize=1)
def _workload(name: str, seed: int, settings: Settings) -> Workload:
    arena = _arena(name, settings)
    assert isinstance(arena, Arena)
    return arena.make(seed, arena.steps)


@lru_cache(maxsize=64)
def _arena(name: str, settings: Settings) -> Arena | PromptArena:
    return chosen_arenas((name,), settings)[0]
