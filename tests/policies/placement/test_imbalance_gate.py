"""Cached prompts attract until the fleet is out of balance."""

import numpy as np
import pytest
from support.agents_workload import run
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Observation
from steersman.mechanisms.simulated.profile import load_profile
from steersman.policies.placement.imbalance_gate import ImbalanceGate

R, Q, E = Phase.RUNNING, Phase.QUEUED, Phase.ENDED


def placements(policy: ImbalanceGate, seen: Observation) -> list[str]:
    forecast = forecast_of(seen, [100.0] * len(seen.trajectories))
    return [d.replica for d in policy.decide(seen, forecast, np.random.default_rng(0))]


def test_siblings_gather_where_their_prompt_is_and_groups_spread() -> None:
    seen = observation(trajectory_table([Q] * 12, 4), replica_table(3))
    assert placements(ImbalanceGate(), seen) == ["r0"] * 4 + ["r1"] * 4 + ["r2"] * 4


@pytest.mark.parametrize(
    ("policy", "gathered"),
    [
        (ImbalanceGate(), 11),
        (ImbalanceGate(imbalance_requests=32, imbalance_ratio=1), 33),
        (ImbalanceGate(imbalance_requests=float("inf")), 60),
    ],
)
def test_the_gate_opens_at_its_spread(policy: ImbalanceGate, gathered: int) -> None:
    """A group of 60 on two idle replicas: all to one, until one more would be too many."""
    placed = placements(policy, observation(trajectory_table([Q] * 60, 60), replica_table(2)))
    assert placed[:gathered] == ["r0"] * gathered
    assert placed[gathered : gathered + 1] == ["r1"] * (gathered < 60)


def test_both_thresholds_must_be_exceeded() -> None:
    rows = [0] * 40 + [1] * 30 + [NO_ROW]
    table = trajectory_table([R] * 70 + [Q], 71, replica_row=rows)
    seen = observation(table, replica_table(2))
    assert placements(ImbalanceGate(imbalance_requests=5, imbalance_ratio=1.2), seen) == ["r1"]
    # out of bounds by the difference alone: the prompt is on both, the emptier one is taken anyway
    alone = trajectory_table([R] * 70 + [Q], replica_row=rows, generated_tokens=[9] * 71)
    returns = ImbalanceGate(imbalance_requests=5, imbalance_ratio=1.5)
    before = trajectory_table([R] * 71, replica_row=[*rows[:-1], 0])
    placements(returns, observation(before, replica_table(2)))
    assert placements(returns, observation(alone, replica_table(2))) == ["r0"]


def test_a_trajectory_with_tokens_returns_to_them_before_its_siblings() -> None:
    policy = ImbalanceGate()
    before = trajectory_table([R, R, R, R], 4, replica_row=[1, 0, 0, 0])
    placements(policy, observation(before, replica_table(2)))
    again = trajectory_table(
        [Q, R, E, R], 4, replica_row=[NO_ROW, 0, NO_ROW, 0], generated_tokens=[50, 1, 1, 1]
    )
    assert placements(policy, observation(again, replica_table(2))) == ["r1"]


def test_long_prompts_are_computed_once_per_group() -> None:
    lengths = Lengths(
        steps=1, groups=32, median_tokens=200, p90_over_p50=2, prompt_tokens=8000, pool=1 << 12
    )
    work, fleet = made_up(lengths, 0), FleetPlan(load_profile("qwen3-8b-a100-tp1"), 4)
    gathered = run(work, fleet, "imbalance_gate").steps[0].makespan_s
    assert gathered < 0.85 * run(work, fleet, "sticky_least_inflight").steps[0].makespan_s


def test_without_the_gate_few_large_groups_leave_replicas_idle() -> None:
    lengths = Lengths(steps=1, groups=2, group_size=64, median_tokens=400, pool=1 << 12)
    work, fleet = made_up(lengths, 0), FleetPlan(load_profile("qwen3-8b-a100-tp1"), 4)
    gated = run(work, fleet, "imbalance_gate")
    never = run(work, fleet, "imbalance_gate", {"imbalance_requests": 1e9})
    assert gated.steps[0].makespan_s < never.steps[0].makespan_s
    assert len(set(gated.attempts.replica.tolist())) == 4
    assert len(set(never.attempts.replica.tolist())) == 2
