"""Small replays with tails: a policy against the default rule on made-up lengths."""

from dataclasses import replace

import numpy as np

from steersman.controller.config import load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Result, replay
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.mechanisms.simulated.profile import load_profile

DEFAULT = "sticky_least_inflight"
DENSE_8B = load_profile("qwen3-8b-h100-tp1")
EIGHT = FleetPlan(DENSE_8B, 8)
"""Eight replicas with memory for everything."""
SHORT_OF_MEMORY = FleetPlan(replace(DENSE_8B, kv_capacity_tokens=60_000), 4)
"""Four replicas whose KV cache holds a quarter of what they would run."""
WEAK_TAIL = Lengths(steps=8, groups=64, group_size=4, pool=64, p90_over_p50=1.5, median_tokens=3000)
"""Every step visits the same 64 prompts; they explain 65 % of the variance of log-lengths."""
STRONG_TAIL = replace(WEAK_TAIL, p90_over_p50=6.0, median_tokens=1200)


def run(policy: str, lengths: Lengths, plan: FleetPlan = EIGHT, seed: int = 1) -> Result:
    """One replay, two virtual seconds a tick."""
    config = load_config(None, [f"placement.name={policy}", "tick_s=2.0"], environ={})
    return replay(made_up(lengths, seed), plan, config)


def makespans(result: Result) -> np.ndarray:
    """(steps,) seconds."""
    return np.array([step.makespan_s for step in result.steps])


def ratio(result: Result, default: Result, first: int = 0) -> float:
    """Seconds of the steps from `first` on, over the default rule's."""
    return float(makespans(result)[first:].sum() / makespans(default)[first:].sum())
