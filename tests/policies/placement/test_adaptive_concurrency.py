"""prime-rl's concurrency controller: its state machine, and what it is for."""

from dataclasses import replace
from typing import Any

import numpy as np
from support.agents_workload import agents, caching_fleet, run
from support.observations import (
    ended_table,
    forecast_of,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Objective, Observation, TrainerSignal
from steersman.mechanisms.simulated.profile import load_profile
from steersman.policies.decision import Action, Decision
from steersman.policies.placement.adaptive_concurrency import AdaptiveConcurrency

R, Q = Phase.RUNNING, Phase.QUEUED


def seen(
    at_s: float,
    held: int,
    queued: int = 400,
    ended: int = 0,
    trainer: TrainerSignal | None = None,
    **columns: Any,
) -> Observation:
    """One replica that holds `held` trajectories, in groups of four, the later the younger."""
    phase = [R] * held + [Q] * queued
    rows = [0] * held + [NO_ROW] * queued
    table = trajectory_table(
        phase,
        4,
        replica_row=rows,
        prompt_tokens=np.full(len(phase), 100),
        max_new_tokens=np.full(len(phase), 900),
        placed_s=np.arange(len(phase)) // 4 * 1.0,
    )
    columns = {"kv_capacity_tokens": [100_000], **columns}
    return observation(
        table,
        replica_table(1, **columns),
        now_s=at_s,
        ended=ended_table([10] * ended),
        trainer=trainer or TrainerSignal(max_lag=2),
    )


def ask(policy: AdaptiveConcurrency, what: Observation) -> list[Decision]:
    forecast = forecast_of(what, [100.0] * len(what.trajectories))
    return policy.decide(what, forecast, np.random.default_rng(0))


def cap(policy: AdaptiveConcurrency) -> float:
    value: float = policy.state_dict()["cap"]
    return value


def test_it_starts_with_what_fits_if_all_grow_to_their_limit() -> None:
    policy = AdaptiveConcurrency()
    ask(policy, seen(0.0, 0))
    assert cap(policy) == 100


def test_a_turnover_of_a_pool_that_fills_the_cap_grows_it_by_a_quarter() -> None:
    policy = AdaptiveConcurrency()
    ask(policy, seen(0.0, 100))
    for _ in range(10):
        full = int(cap(policy))
        ask(policy, seen(1.0, full - full // 10, ended=full // 10))
    assert 122 < cap(policy) < 126


def test_it_does_not_grow_on_old_news_nor_on_an_idle_cap_nor_on_a_fuller_cache() -> None:
    old, idle, fuller = (AdaptiveConcurrency() for _ in range(3))
    ask(old, seen(0.0, 100))
    old.poll_s = 1e9
    ask(old, seen(20.0, 90, ended=10))
    ask(idle, seen(0.0, 50))
    ask(idle, seen(1.0, 40, ended=10))
    ask(fuller, seen(0.0, 100, kv_cache_usage=[0.65]))
    ask(fuller, seen(1.0, 90, ended=10))
    assert [cap(policy) for policy in (old, idle, fuller)] == [100, 100, 100]


def test_a_full_cache_trims_the_cap_and_only_admission_stops() -> None:
    policy = AdaptiveConcurrency(poll_s=1)
    ask(policy, seen(0.0, 100))
    assert ask(policy, seen(1.0, 96, kv_cache_usage=[0.92])) == []
    assert cap(policy) == 73
    ask(policy, seen(2.0, 96, kv_cache_usage=[0.92]))
    assert cap(policy) == 73


def test_preemptions_during_a_drain_do_not_cascade() -> None:
    """prime-rl saw 1024 fall to 8 before the drain was tied to quiet engines."""
    policy = AdaptiveConcurrency(poll_s=1)
    ask(policy, seen(0.0, 100))
    for second in range(1, 9):
        ask(policy, seen(second, 100 - 4 * second, preemptions=[second]))
    assert cap(policy) == int(0.8 * 96)


def test_overload_right_after_a_drain_cuts_to_half_and_later_to_four_fifths_again() -> None:
    soon, later = AdaptiveConcurrency(poll_s=1), AdaptiveConcurrency(poll_s=1)
    for policy, quiet in ((soon, 2), (later, 9)):
        ask(policy, seen(0.0, 100))
        ask(policy, seen(1.0, 100, preemptions=[1]))
        for second in range(quiet):
            ask(policy, seen(2.0 + second, 80, preemptions=[1], kv_cache_usage=[0.7]))
        ask(policy, seen(20.0, 80, preemptions=[2]))
    assert [cap(soon), cap(later)] == [40, 64]


def test_a_queue_that_lasts_six_polls_counts_as_overload() -> None:
    policy = AdaptiveConcurrency(poll_s=1)
    for second in range(5):
        ask(policy, seen(second, 100, running=[60], waiting=[40]))
    assert cap(policy) == 100
    ask(policy, seen(5.0, 100, running=[60], waiting=[40]))
    assert cap(policy) == 90


def test_what_is_in_flight_grows_by_a_tenth_of_the_cap_per_five_seconds() -> None:
    policy = AdaptiveConcurrency()
    assert len(ask(policy, seen(0.0, 0))) == 10
    assert len(ask(policy, seen(2.0, 10))) == 0
    assert len(ask(policy, seen(3.0, 7, ended=3))) == 3
    assert len(ask(policy, seen(5.0, 10))) == 10


def test_a_hard_trim_may_park_the_youngest_whole_groups_of_a_barrier_trainer() -> None:
    policy = AdaptiveConcurrency(poll_s=1, defer_youngest=True)
    ask(policy, seen(0.0, 100, 0))
    decisions = ask(policy, seen(1.0, 100, 0, kv_cache_usage=[0.95]))
    assert {d.action for d in decisions} == {Action.DEFER}
    assert [d.trajectory_id for d in decisions] == list(range(72, 100))
    stream = TrainerSignal(objective=Objective.STREAM, max_lag=2)
    other = AdaptiveConcurrency(poll_s=1, defer_youngest=True)
    ask(other, seen(0.0, 100, 0, trainer=stream))
    assert ask(other, seen(1.0, 100, 0, trainer=stream, kv_cache_usage=[0.95])) == []


def test_a_run_that_begins_before_its_replicas_does_not_begin_with_a_cap_of_one() -> None:
    policy, other = AdaptiveConcurrency(), AdaptiveConcurrency()
    assert ask(policy, seen(0.0, 0, alive=[False])) == []
    assert ask(policy, seen(10.0, 0)) == ask(other, seen(10.0, 0)) != []
    assert policy.state_dict()["cap"] == other.state_dict()["cap"] > 1


def test_it_prevents_the_thrashing_of_agents_admitted_all_at_once() -> None:
    work, fleet = agents(np.full(8, 16), 8), caching_fleet()
    at_once = run(work, fleet, "sticky_least_inflight", tick_s=4.0)
    capped = run(work, fleet, "adaptive_concurrency", tick_s=4.0)
    assert capped.steps[0].makespan_s < 0.8 * at_once.steps[0].makespan_s


def test_single_turns_that_outgrow_the_memory_are_not_preempted_any_more() -> None:
    lengths = Lengths(steps=1, groups=16, group_size=8, median_tokens=2500, p90_over_p50=3.0)
    profile = load_profile("qwen3-8b-h100-tp1")
    fleet = FleetPlan(replace(profile, kv_capacity_tokens=60_000), 2)
    work = made_up(lengths, seed=0)
    at_once = run(work, fleet, "sticky_least_inflight", tick_s=4.0)
    capped = run(work, fleet, "adaptive_concurrency", tick_s=4.0)
    assert at_once.preemptions > 50
    assert capped.preemptions <= 0.1 * at_once.preemptions
