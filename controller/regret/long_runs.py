"""Workloads for hundreds of steps: three that stay as they are, and one that goes through them.

All are on one fleet, small enough that a step takes a tenth of a second to simulate: 4 replicas of
32 slots whose KV cache holds what the answers of `steady_tail` need and a quarter of what the
agents of `steady_agents` do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.options import Options
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament.arena import Arena
from steersman.controller.tournament.lengths import Lengths, joined, made_up
from steersman.controller.tournament.shapes import Agents, agents
from steersman.controller.tournament.workloads import arenas
from steersman.estimators.errors import UnknownNameError
from steersman.mechanisms.simulated.profile import load_profile

REGIME_STEPS = 100
"""Until the next regime of `changing`."""
TAIL = Lengths(groups=16, median_tokens=600, max_new_tokens=8192, pool=160)
"""16 x 8 at once; prompts come again every tenth step, and tell 65 % of the log-lengths."""
WAVES = Lengths(
    groups=96, median_tokens=300, p90_over_p50=3.0, max_new_tokens=4096, prompt_share=0.95
)
"""96 x 8 in six waves; siblings are alike."""
AGENTS = Agents(groups=12, turns=12, written=40, extra=1500.0)
"""12 x 8 with contexts that grow to some 19,000 tokens."""


@dataclass(frozen=True)
class LongRun:
    """One workload on one fleet, as long as is wanted."""

    name: str
    summary: str
    plan: FleetPlan
    make: Callable[[int, int], Workload]
    """Of (seed, steps)."""
    regimes: tuple[str, ...]
    """One after another, and again from the first."""
    options: Options = field(default_factory=lambda: Options(reaction_s=0.5))
    overrides: tuple[str, ...] = ("tick_s=1.0",)
    """Of the configuration, for all entries."""

    def starts(self, steps: int) -> list[tuple[int, str]]:
        """The first step of each regime, and its name."""
        each = regime_steps(steps, len(self.regimes)) if len(self.regimes) > 1 else steps
        return [
            (first, self.regimes[i % len(self.regimes)])
            for i, first in enumerate(range(0, steps, each))
        ]


def regime_steps(steps: int, regimes: int) -> int:
    """How long a regime lasts; in a run that is too short for all, each has its share."""
    return min(REGIME_STEPS, max(steps // regimes, 1))


def long_runs() -> Mapping[str, LongRun]:
    """Those made for this."""
    profile = load_profile("qwen3-8b-h100-tp1")
    profile = replace(profile, max_num_seqs=32, kv_capacity_tokens=60_000)
    plan = FleetPlan(profile, 4, prefix_cache_share=0.5)
    about = {
        "steady_tail": "16 x 8 a step, P90 / P50 = 6, prompts explain 65 %",
        "steady_waves": "96 x 8 a step in six waves; prompts explain 95 %, none comes again",
        "steady_agents": "12 x 8 agents of 12 turns; the KV caches hold a quarter of them",
    }
    steady = [
        LongRun(name, text, plan, STEADY[name], (name.removeprefix("steady_"),))
        for name, text in about.items()
    ]
    names = ", ".join(run.regimes[0] for run in steady)
    changing = LongRun(
        "changing",
        f"{names} in turn, {REGIME_STEPS} steps each (a third of a shorter run)",
        plan,
        _changing,
        tuple(run.regimes[0] for run in steady),
    )
    return {run.name: run for run in (*steady, changing)}


def long_run(name: str) -> LongRun:
    """One of them, or a workload of the tournament with steps that wait for all their answers."""
    known = long_runs()
    if name in known:
        return known[name]
    others = {
        arena.name: arena
        for arena in arenas().values()
        if isinstance(arena, Arena) and "placement" in arena.sections and not arena.is_stream
    }
    if name not in others:
        raise UnknownNameError("workload", name, [*known, *others])
    arena = others[name]
    return LongRun(
        name, arena.summary, arena.plan, arena.make, (name,), arena.options, arena.overrides
    )


def _made_up(lengths: Lengths, fresh: bool, seed: int, steps: int) -> Workload:
    """`fresh`: no prompt comes again."""
    pool = lengths.groups * steps if fresh else lengths.pool
    return made_up(replace(lengths, steps=steps, pool=pool), seed)


STEADY: Mapping[str, Callable[[int, int], Workload]] = {
    "steady_tail": partial(_made_up, TAIL, False),
    "steady_waves": partial(_made_up, WAVES, True),
    "steady_agents": partial(agents, AGENTS),
}
"""Of (seed, steps)."""


def _changing(seed: int, steps: int) -> Workload:
    """Each regime goes on where it stopped when it comes again; none shares prompts with others."""
    each = regime_steps(steps, len(STEADY))
    whole = []
    for number, make in enumerate(STEADY.values()):
        made = make(seed, steps)
        other = [replace(s, prompt_key=s.prompt_key + (number << 32)) for s in made.steps]
        whole.append(replace(made, steps=other))
    parts = []
    for i, first in enumerate(range(0, steps, each)):
        regime, visit = whole[i % len(whole)], i // len(whole)
        length = min(each, steps - first)
        parts.append(replace(regime, steps=regime.steps[visit * each : visit * each + length]))
    return joined(parts)
