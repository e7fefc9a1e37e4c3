"""AIMD windows: how they move, and the thrashing that they prevent."""

import numpy as np
from support.agents_workload import agents, caching_fleet, run
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Observation
from steersman.policies.placement.aimd_concurrency import AimdConcurrency

R, Q = Phase.RUNNING, Phase.QUEUED


def seen(at_s: float, held: list[int], waiting: int = 50, **columns: object) -> Observation:
    """Replica i holds held[i] trajectories; others wait."""
    rows = [i for i, count in enumerate(held) for _ in range(count)]
    phase = [R] * len(rows) + [Q] * waiting
    table = trajectory_table(phase, replica_row=rows + [NO_ROW] * waiting)
    return observation(table, replica_table(len(held), **columns), now_s=at_s)


def placed(policy: AimdConcurrency, what: Observation) -> list[int]:
    """Trajectories that each replica gets."""
    forecast = forecast_of(what, [100.0] * len(what.trajectories))
    decisions = policy.decide(what, forecast, np.random.default_rng(0))
    names = [d.replica for d in decisions]
    return [names.count(name) for name in what.replicas.names]


def windows(policy: AimdConcurrency) -> dict[str, float]:
    size: dict[str, float] = policy.state_dict()["size"]
    return size


def test_a_window_fills_and_the_rest_waits() -> None:
    assert placed(AimdConcurrency(initial=8), seen(0.0, [3, 9])) == [5, 0]


def test_it_grows_by_addition_while_memory_is_free_and_it_binds() -> None:
    policy = AimdConcurrency(initial=8, increase=2, kv_low=0.2, interval_s=1)
    placed(policy, seen(0.0, [8, 2, 8]))
    placed(policy, seen(1.0, [8, 2, 8], kv_cache_usage=[0.1, 0.1, 0.3]))
    assert windows(policy) == {"r0": 10.0, "r1": 8.0, "r2": 8.0}


def test_it_shrinks_by_a_factor_when_a_full_cache_misses_or_a_request_is_preempted() -> None:
    policy = AimdConcurrency(initial=8, decrease=0.5, kv_high=0.5, hit_low=0.4, interval_s=1)
    placed(policy, seen(0.0, [8] * 4))
    figures = {
        "kv_cache_usage": [0.6, 0.6, 0.4, 0.3],
        "prefix_hit_share": [0.2, 0.9, 0.2, 0.9],
        "preemptions": [0, 0, 0, 3],
    }
    placed(policy, seen(1.0, [8] * 4, **figures))
    assert windows(policy) == {"r0": 4.0, "r1": 8.0, "r2": 8.0, "r3": 4.0}


def test_one_congestion_costs_one_cut_until_the_replica_has_drained() -> None:
    policy = AimdConcurrency(initial=8, interval_s=1)
    for second in range(6):
        placed(policy, seen(second, [8], kv_cache_usage=[0.9]))
    assert windows(policy) == {"r0": 4.0}
    placed(policy, seen(7.0, [4], kv_cache_usage=[0.9]))
    assert windows(policy) == {"r0": 2.0}


def test_what_carries_tokens_is_resumed_before_anything_new_is_admitted() -> None:
    table = trajectory_table([Q] * 4, generated_tokens=[0, 0, 70, 0], queued_s=[5.0, 4.0, 9.0, 3.0])
    what = observation(table, replica_table(1), now_s=10.0)
    policy = AimdConcurrency(initial=3)
    forecast = forecast_of(what, [100.0] * 4)
    decisions = policy.decide(what, forecast, np.random.default_rng(0))
    assert [d.trajectory_id for d in decisions] == [2, 3, 1]


def test_it_prevents_the_thrashing_of_agents_admitted_all_at_once() -> None:
    """CONCUR's claim, on its model: all at once, everybody's context is written over before they
    come back (2.3 times as long here, up to 4.09 in the paper)."""
    work, fleet = agents(np.full(8, 16), 8), caching_fleet()
    at_once = run(work, fleet, "sticky_least_inflight", tick_s=4.0)
    windowed = run(work, fleet, "aimd_concurrency", tick_s=4.0)
    assert windowed.steps[0].tokens == at_once.steps[0].tokens
    assert windowed.steps[0].makespan_s < 0.6 * at_once.steps[0].makespan_s


def test_with_memory_to_spare_admission_control_only_costs_time() -> None:
    work, fleet = agents(np.full(4, 8), 8), caching_fleet(4_000_000)
    at_once = run(work, fleet, "sticky_least_inflight").steps[0].makespan_s
    assert run(work, fleet, "aimd_concurrency").steps[0].makespan_s > at_once
