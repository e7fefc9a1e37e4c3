"""The workloads of the tournament, by name: what is asked for, and on what fleet.

Each isolates one regime that published systems claim to serve, on hardware profiles that are
shipped.  The default rule of each is what its trainer would do: fewest requests in flight, and
nothing moved.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from steersman.controller.calibration.steps import Plan
from steersman.controller.calibration.tables import samples_from_csv
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options
from steersman.controller.replay.sources import TABLES, load_workload
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament.arena import Arena, PromptArena
from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.controller.tournament.sample_banks import DriftingSamples, RecordedSamples
from steersman.controller.tournament.shapes import (
    agentic,
    long_agents,
    multimodal,
    regime_change,
    wandering,
)
from steersman.estimators.errors import UnknownNameError
from steersman.mechanisms.simulated.profile import load_profile

PROMPTS = "#prompts"
"""At the end of a table's path: its prompts, for policies that choose among them."""
DENSE_8B = "qwen3-8b-h100-tp1"
COALESCED = Options(reaction_s=0.5)
"""Where thousands end in a step of minutes: what ends within half a second is decided together."""
QUICK_STEPS = 3
"""The least in which a prompt comes again, for policies that remember."""


def arenas() -> Mapping[str, Arena | PromptArena]:
    """All of them, in the order of the table."""
    parts = (*_tails(), *_sizes(), *_siblings(), *_special(), *_others())
    return {arena.name: arena for arena in parts}


def chosen_arenas(names: Sequence[str], settings: Settings) -> list[Arena | PromptArena]:
    """Those named, or all; with the hardware and the steps that the settings give."""
    known = arenas()
    chosen: list[Arena | PromptArena] = []
    for name in names:
        if name.endswith(TABLES):
            chosen += _of_table(name)
        elif name.endswith(PROMPTS):
            chosen += [a for a in _of_table(name.removesuffix(PROMPTS)) if a.name == name]
        elif name not in known:
            raise UnknownNameError("workload", name, known)
        else:
            chosen.append(known[name])
    if not names:
        chosen = [arena for arena in known.values() if arena.quick or not settings.quick]
    if settings.quick:
        chosen = [replace(arena, steps=min(arena.steps, QUICK_STEPS)) for arena in chosen]
    if settings.profile:
        profile = load_profile(settings.profile)
        chosen = [replace(a, plan=replace(a.plan, profile=profile)) for a in chosen]
    return chosen


def _of_table(path: str) -> list[Arena | PromptArena]:
    """A table of samples: steps of 32 prompts x 8, and its prompts if it has rewards."""
    samples = samples_from_csv(Path(path))
    arenas: list[Arena | PromptArena] = [
        Arena(path, f"the samples of {path}, 32 x 8 a step", _fleet(4), partial(_table_steps, path))
    ]
    if np.isfinite(samples.reward).any():
        count = len(np.unique(np.array(samples.prompt)))
        arenas.append(
            PromptArena(
                path + PROMPTS,
                f"the {count} prompts of {path}, samples drawn again",
                _fleet(4),
                lambda seed: RecordedSamples(samples, group_size=8),
                groups_wanted=min(32, max(1, count // 4)),
                candidates_per_step=min(128, count),
            )
        )
    return arenas


def _table_steps(path: str, seed: int, steps: int) -> Workload:
    plan = Plan(group_size=8, prompts_per_step=32, passes=steps, seed=seed)
    whole = load_workload(Path(path), plan)
    return replace(whole, steps=whole.steps[:steps])


def _fleet(
    replicas: int = 8, max_num_seqs: int | None = None, kv_capacity_tokens: int | None = None
) -> FleetPlan:
    profile = load_profile(DENSE_8B)
    profile = replace(
        profile,
        max_num_seqs=max_num_seqs or profile.max_num_seqs,
        kv_capacity_tokens=kv_capacity_tokens or profile.kv_capacity_tokens,
    )
    return FleetPlan(profile, replicas)


def _of(lengths: Lengths) -> Callable[[int, int], Workload]:
    return lambda seed, steps: made_up(replace(lengths, steps=steps), seed)


def _tails() -> tuple[Arena, ...]:
    return (
        Arena(
            "strong_tail",
            "64 x 8 a step, P90 / P50 = 6, prompts explain 65 %",
            _fleet(),
            _of(Lengths()),
            quick=True,
        ),
        Arena(
            "weak_tail",
            "64 x 8 a step, P90 / P50 = 1.5, prompts explain 65 %",
            _fleet(),
            _of(Lengths(p90_over_p50=1.5, median_tokens=3000)),
        ),
        Arena(
            "uniform_short",
            "64 x 8 a step, all about 400 tokens",
            _fleet(),
            _of(Lengths(p90_over_p50=1.1, median_tokens=400, max_new_tokens=1024)),
            overrides=("tick_s=0.25",),  # a step takes five seconds
            quick=True,
        ),
        Arena(
            "kv_bound",
            "64 x 16 a step of 4 replicas whose KV cache holds a quarter of what they would run",
            _fleet(4, kv_capacity_tokens=200_000),
            _of(Lengths(group_size=16, median_tokens=2500, p90_over_p50=3.0)),
            steps=3,
            options=COALESCED,
            overrides=("tick_s=2.0",),
        ),
    )


def _sizes() -> tuple[Arena, ...]:
    return (
        Arena(
            "few_groups",
            "16 x 8 a step, strong tail",
            _fleet(),
            _of(Lengths(groups=16)),
        ),
        Arena(
            "many_groups",
            "256 x 8 a step, strong tail",
            _fleet(),
            _of(Lengths(groups=256)),
            steps=3,
            options=COALESCED,
            overrides=("tick_s=2.0",),
        ),
        Arena(
            "most_groups",
            "1024 x 8 a step on 16 replicas, strong tail",
            _fleet(16),
            _of(Lengths(groups=1024, pool=1024)),
            steps=2,
            options=COALESCED,
            overrides=("tick_s=4.0",),
        ),
    )


def _siblings() -> tuple[Arena, ...]:
    lengths = Lengths(median_tokens=800, p90_over_p50=3.0, max_new_tokens=8192, pool=1 << 12)
    return (
        Arena(
            "siblings_alike",
            "64 x 8 a step in eight waves; prompts explain 95 % of lengths, none comes again",
            _fleet(4, max_num_seqs=16),
            _of(replace(lengths, prompt_share=0.95)),
            quick=True,
        ),
        Arena(
            "siblings_unlike",
            "64 x 8 a step in eight waves; prompts explain 10 % of lengths, none comes again",
            _fleet(4, max_num_seqs=16),
            _of(replace(lengths, prompt_share=0.1)),
        ),
    )


def _others() -> tuple[Arena | PromptArena, ...]:
    """For policies that do not place."""
    return (
        Arena(
            "draftable",
            "strong tail; drafts are accepted with 0.7, at each further position with a tenth less",
            replace(_fleet(max_num_seqs=96), acceptance=tuple(0.7 * 0.9**i for i in range(8))),
            _of(Lengths()),
            sections=("speculation",),
            quick=True,
        ),
        Arena(
            "wandering",
            "64 x 8 a step; one in eight answers strays: it is unsure, repeats itself to the cap",
            _fleet(),
            wandering,
            sections=("stopping",),
            quick=True,
        ),
        PromptArena(
            "drifting_prompts",
            "2,000 prompts that a model learns, 4 of 10 groups degenerate; 32 x 8 a step",
            _fleet(4),
            lambda seed: DriftingSamples(seed=seed),
            quick=True,
        ),
    )


def _special() -> tuple[Arena, ...]:
    return (
        Arena(
            "mixed_hardware",
            "strong tail on 8 replicas, two of which are half as fast",
            replace(_fleet(), speeds=(1.0,) * 6 + (0.5,) * 2),
            _of(Lengths()),
            quick=True,
        ),
        Arena(
            "agentic",
            "32 x 8 a step of 2 to 16 turns, tool waits of 0.5 to 30 s",
            _fleet(4),
            agentic,
        ),
        Arena(
            "long_agents",
            "16 x 8 agents of 20 turns, on 2 replicas whose KV cache holds a tenth of them",
            FleetPlan(
                replace(load_profile("qwen3-32b-h100-tp4"), kv_capacity_tokens=200_000),
                2,
                prefix_cache_share=0.5,
            ),
            long_agents,
            steps=2,
            quick=True,
        ),
        Arena(
            "multimodal",
            "64 x 8 a step with 0 to 4 images of 0.15 s each, short answers, long prompts",
            replace(_fleet(4), image_encode_s=0.15),
            multimodal,
        ),
        Arena(
            "regime_change",
            "strong tail; from the middle on all about 1,000 tokens and other prompts",
            _fleet(),
            regime_change,
            steps=10,
        ),
        Arena(
            "async_lag",
            "strong tail as a stream: 96 groups open, batches of 32, lag at most 2",
            _fleet(),
            _of(Lengths()),
            options=Options(inflight_groups=96, batch_groups=32),
            overrides=("tick_s=1.0", "max_lag=2"),
        ),
    )
