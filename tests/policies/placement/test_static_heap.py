"""OpenRLHF's dispatch: groups as units, and what that costs."""

from dataclasses import replace

import numpy as np
from support.agents_workload import run
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Observation
from steersman.mechanisms.simulated.profile import load_profile
from steersman.policies.placement.static_heap import StaticHeap

R, Q, E = Phase.RUNNING, Phase.QUEUED, Phase.ENDED


def placements(policy: StaticHeap, seen: Observation) -> list[str]:
    forecast = forecast_of(seen, [100.0] * len(seen.trajectories))
    return [d.replica for d in policy.decide(seen, forecast, np.random.default_rng(0))]


def test_each_group_goes_whole_to_the_engine_with_the_least() -> None:
    rows = [0, 0, 0, 1] + [NO_ROW] * 8
    table = trajectory_table([R] * 4 + [Q] * 8, 2, replica_row=rows)
    placed = placements(StaticHeap(), observation(table, replica_table(3)))
    assert placed == ["r2"] * 2 + ["r1"] * 2 + ["r2"] * 2 + ["r0"] * 2


def test_a_sample_that_waits_again_returns_to_its_group_whatever_else_is_free() -> None:
    policy = StaticHeap()
    placements(policy, observation(trajectory_table([Q] * 4, 4), replica_table(2)))
    again = trajectory_table([R, Q, E, R], 4, replica_row=[0, NO_ROW, NO_ROW, 0])
    assert placements(policy, observation(again, replica_table(2))) == ["r0"]
    lost = replica_table(2, alive=[False, True])
    assert placements(policy, observation(again, lost)) == ["r1"]


def test_siblings_that_are_alike_hold_one_engine_up() -> None:
    """Where prompts explain the lengths, whole groups are whole tails."""
    lengths = Lengths(steps=3, groups=32, group_size=16, prompt_share=0.9, pool=1 << 12)
    work, fleet = made_up(lengths, 0), FleetPlan(load_profile("qwen3-8b-h100-tp1"), 8)
    static = run(work, fleet, "static_heap", tick_s=4.0)
    spread = run(work, fleet, "sticky_least_inflight", tick_s=4.0)
    times = [sum(step.makespan_s for step in result.steps) for result in (static, spread)]
    assert times[0] > 1.1 * times[1]


def test_it_computes_a_long_prompt_once_per_group() -> None:
    lengths = Lengths(
        steps=1, groups=16, median_tokens=200, p90_over_p50=2, prompt_tokens=8000, pool=1 << 12
    )
    profile = replace(load_profile("qwen3-8b-a100-tp1"), max_num_seqs=64)
    work, fleet = made_up(lengths, 0), FleetPlan(profile, 4)
    together = run(work, fleet, "static_heap").steps[0].makespan_s
    assert together < 0.9 * run(work, fleet, "round_robin").steps[0].makespan_s
