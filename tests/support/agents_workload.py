"""Agents on one engine: many turns, growing contexts, and a prefix cache that some of them fill."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from steersman.controller.config import load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, Result, replay
from steersman.controller.replay.turns import Turns
from steersman.controller.replay.workload import Asked, Workload
from steersman.mechanisms.simulated.profile import load_profile

CAP = 1 << 16


def caching_fleet(kv_capacity_tokens: int = 200_000) -> FleetPlan:
    """One replica of Qwen3-32B on four H100, that finds an agent's context again after a tool call
    while half of its KV cache (the other half is taken by those that run) was not written over."""
    profile = replace(load_profile("qwen3-32b-h100-tp4"), kv_capacity_tokens=kv_capacity_tokens)
    return FleetPlan(profile, 1, prefix_cache_share=0.5)


def agents(
    turns: np.ndarray,
    size: int,
    written: int = 60,
    extra: int = 1500,
    wait_s: float = 1.0,
    prompt_tokens: int = 1000,
    seed: int = 0,
) -> Workload:
    """One step of groups of `size` agents; those of group g have `turns[g]` turns.

    Each turn writes as much; tool calls take, and their answers have, exponential times and lengths
    with these means.
    """
    count = np.repeat(turns, size)
    last, rng = np.cumsum(count) - 1, np.random.default_rng(seed)
    waits = rng.exponential(wait_s, count.sum())
    appended = np.round(rng.exponential(extra, count.sum())) + 1
    waits[last] = appended[last] = 0.0
    step = Asked.plain(
        step=0,
        prompt_key=np.arange(len(turns)),
        group_row=np.repeat(np.arange(len(turns)), size),
        prompt_tokens=prompt_tokens,
        length=written * count,
        max_new_tokens=CAP,
        turns=Turns(count, np.full(count.sum(), float(written)), waits, appended),
    )
    return Workload([step])


def run(
    workload: Workload,
    plan: FleetPlan,
    policy: str,
    options: Mapping[str, Any] | None = None,
    tick_s: float = 1.0,
    replay_options: Options | None = None,
) -> Result:
    """Replay under a placement policy with these options of its own."""
    own = [f"placement.options.{name}={value}" for name, value in (options or {}).items()]
    config = load_config(None, [f"placement.name={policy}", f"tick_s={tick_s}", *own], environ={})
    return replay(workload, plan, config, replay_options or Options())
