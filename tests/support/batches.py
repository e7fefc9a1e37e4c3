"""Small replays of a trainer that takes the first complete groups, and what is told of them."""

from dataclasses import replace
from functools import cache

import numpy as np
from support.small_replay import PROFILE, small_workload

from steersman.controller.config import load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, Result, replay
from steersman.controller.replay.workload import Workload
from steersman.estimators.observation import Floats

DEFAULT = "sticky_least_inflight"
GROUPS, SIZE, STEPS = 8, 4, 6
SEEDS = range(3)
ROOMY = replace(PROFILE, max_num_seqs=24)
"""Slots and memory for more than two batches on two replicas."""
TIGHT = replace(PROFILE, max_num_seqs=24, kv_capacity_tokens=1000)
"""Memory for one batch."""
FLEET = FleetPlan(ROOMY, 2)
BATCHES = Options(groups_wanted=GROUPS)
WHOLE_STEPS = Options()


def workload(seed: int, steps: int = STEPS, groups: int = GROUPS) -> Workload:
    """Heavy-tailed lengths, every group of another prompt."""
    return small_workload(steps=steps, groups=groups, size=SIZE, seed=seed)


def play(
    policy: str, asked: Workload, plan: FleetPlan, options: Options, *overrides: str
) -> Result:
    """One replay."""
    config = load_config(None, [f"placement.name={policy}", "tick_s=0.2", *overrides], environ={})
    return replay(asked, plan, config, options)


@cache
def run(
    policy: str, seed: int, *overrides: str, steps: int = STEPS, plan: FleetPlan = FLEET
) -> Result:
    """The default waits for whole steps, every other policy for `GROUPS` complete groups."""
    options = WHOLE_STEPS if policy == DEFAULT else BATCHES
    return play(policy, workload(seed, steps), plan, options, *overrides)


def seconds(result: Result) -> float:
    """Rollout of all steps."""
    return sum(step.makespan_s for step in result.steps)


def answers(result: Result) -> int:
    """Trajectories that were answered."""
    return sum(step.finished for step in result.steps)


def tokens(result: Result) -> int:
    """Of the answers."""
    return sum(step.tokens for step in result.steps)


def discarded(result: Result) -> int:
    """Tokens written in vain."""
    return sum(step.discarded_tokens for step in result.steps)


def mean_tokens(result: Result) -> list[float]:
    """Of the answers in each step."""
    return [step.tokens / max(step.finished, 1) for step in result.steps]


def busy_share(result: Result, slots: int) -> float:
    """Of the slot time from the first to the last decision: spent on a running trajectory."""
    s = result.samples
    time_s, running = np.array(s.time_s), np.stack(s.running).sum(axis=1)
    return float((np.diff(time_s) * running[:-1]).sum() / (np.ptp(time_s) * slots))


def group_ends(result: Result) -> Floats:
    """(g,) when the first, the second, ... group was complete."""
    a = result.attempts
    end_s = np.zeros(int(a.trajectory.max()) + 1)
    np.maximum.at(end_s, a.trajectory, a.end_s)
    return np.sort(end_s.reshape(-1, SIZE).max(axis=1))
