"""What a tournament tells of the reporting checklist."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from steersman.controller.checklist import Checklist, each, length_statistics
from steersman.controller.replay.sources import TABLES
from steersman.controller.replay.told import PHASE, hardware_of, lengths_of
from steersman.controller.tournament.arena import Arena, PromptArena
from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.entries import DEFAULTS
from steersman.controller.tournament.standing import Row
from steersman.controller.tournament.workloads import PROMPTS, arenas, chosen_arenas

LENGTH_STEPS = 2
"""Steps of the first seed from which lengths are told."""
PROMPTS_DRAWN = 100
"""Prompts of a set whose lengths are told."""


def checklist_of(
    rows: Sequence[Row], settings: Settings, told: Mapping[str, str] | None = None
) -> Checklist:
    """Of policies on workloads."""
    known = {
        arena.name: arena for name in workloads_in(rows) if (arena := arena_of(name, settings))
    }
    sections = list(dict.fromkeys(row.section for row in rows))
    seeds = max((row.seeds for row in rows), default=0)
    steps = ", ".join(f"{name} {arena.steps}" for name, arena in known.items())
    made = Checklist(
        baseline="the default policy of each kind: "
        + ", ".join(f"{kind} {DEFAULTS[kind]}" for kind in sections if kind in DEFAULTS),
        phase=PHASE,
        unit="seconds per useful work (tokens of answers that reached their own end; for prompt "
        "policies informative groups), over the default's",
        statistic=f"geometric mean over {seeds} seeds of ratios paired by seed, Student's 95 % "
        f"interval; steps per seed: {steps or 'as recorded'}",
        hardware=each({name: hardware_of(arena.plan) for name, arena in known.items()}),
        workload="; ".join(f"{name}: {arena.summary}" for name, arena in known.items()),
        lever="; ".join(
            f"{kind}: {', '.join(dict.fromkeys(r.policy for r in rows if r.section == kind))}"
            for kind in sections
        ),
        quality="none: a simulation trains nothing; what a policy does to the samples is in the "
        "class of its answers, in the length kept over asked, and in the tokens wasted",
        response_lengths=each({name: _lengths(arena) for name, arena in known.items()}),
    )
    return made.told(told or {})


def workloads_in(rows: Sequence[Row]) -> list[str]:
    """In the order of their first appearance."""
    return list(dict.fromkeys(row.workload for row in rows))


def arena_of(name: str, settings: Settings) -> Arena | PromptArena | None:
    """None: it is no workload of ours, and its file is not here any more."""
    path = name.removesuffix(PROMPTS)
    if name not in arenas() and not (path.endswith(TABLES) and Path(path).exists()):
        return None
    return next((a for a in chosen_arenas([name], settings) if a.name == name), None)


def _lengths(arena: Arena | PromptArena) -> str:
    if isinstance(arena, Arena):
        return lengths_of([arena.make(0, min(arena.steps, LENGTH_STEPS))])
    import numpy as np

    bank, rng = arena.bank(0), np.random.default_rng(0)
    keys = bank.keys[:PROMPTS_DRAWN].tolist()
    drawn = np.concatenate([bank.draw(key, bank.group_size, 0, rng).length for key in keys])
    return length_statistics(drawn.tolist(), int((drawn >= bank.max_new_tokens).sum()))
