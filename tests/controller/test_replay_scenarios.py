"""Scenarios: oversampled steps, deaths and joins, weight updates, mixed hardware, speculation."""

from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_replay import PROFILE as SMALL
from support.small_replay import small_workload

from steersman.controller.config import Config, load_config
from steersman.controller.replay.bounds import bounds
from steersman.controller.replay.events import (
    FleetEvent,
    Happenings,
    Kind,
    Update,
    WeightUpdates,
)
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.intervals import ENDINGS
from steersman.controller.replay.run import Options, Result, replay
from steersman.controller.replay.world import World
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.acceptance import PLUGIN as Acceptance
from steersman.estimators.errors import FleetError
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import TrainerSignal
from steersman.mechanisms.simulated.profile import HardwareProfile, load_profile
from steersman.policies.decision import place

FREE = HardwareProfile(
    name="free", gpu="none", model="none", tensor_parallel=1, fixed_s=0.01, sequence_s=0.001,
    token_s=0.0, prefill_token_s=0.0, kv_capacity_tokens=0, max_num_seqs=64,
)  # fmt: skip
OVERSAMPLING = "support.oversampling_policy:KeepsFirst"
RUN = small_workload(steps=4, groups=4)
"""16 groups of 4."""
LENGTH = np.concatenate([step.length for step in RUN.steps])


def config(policy: str = "sticky_least_inflight", *overrides: str) -> Config:
    return load_config(None, [f"placement.name={policy}", "tick_s=0.1", *overrides], environ={})


def total(run: Result, name: str) -> int:
    return sum(getattr(step, name) for step in run.steps)


def stream(events: tuple[FleetEvent, ...] = (), **weights: object) -> Options:
    updates = WeightUpdates(**weights)  # type: ignore[arg-type]
    happenings = Happenings(events, updates)
    return Options(inflight_groups=6, batch_groups=4, scenario=happenings)


def plan(replicas: int = 2, **changes: object) -> FleetPlan:
    return FleetPlan(SMALL, replicas, **changes)  # type: ignore[arg-type]


LONG = "max_lag=99"


# steps that wait for so many groups


def test_a_policy_that_asks_for_no_more_gets_so_many_groups_a_step() -> None:
    run = replay(RUN, plan(), config(), Options(groups_wanted=3))
    assert [step.asked for step in run.steps] == [12] * 5 + [4]
    assert [step.finished for step in run.steps] == [12] * 5 + [4]
    assert total(run, "tokens") == LENGTH.sum()


@pytest.mark.parametrize("restarting", [False, True])
def test_oversampled_steps_carry_the_rest_over_until_every_group_is_complete(
    restarting: bool,
) -> None:
    options = [f"placement.options.restarting={str(restarting).lower()}", "max_lag=99"]
    bounds_off = [f"guard.max_{name}=999" for name in ("moves_per_tick", "deferrals", "restarts")]
    free = [*options, *bounds_off, "guard.move_cooldown_s=0"]
    free.append("guard.max_moves_per_trajectory=999")
    run = replay(RUN, plan(), config(OVERSAMPLING, *free), Options(groups_wanted=3))
    assert run.steps[0].asked == 6 * 4  # asks for twice what is wanted
    assert total(run, "finished") == total(run, "asked") == len(LENGTH)
    assert total(run, "deferred") > 0
    answers = np.isin(run.attempts.ending, [ENDINGS.index(e) for e in ("finished", "truncated")])
    assert answers.sum() == len(LENGTH)
    if restarting:
        assert total(run, "restarted") == len(run.prompt_tokens) - len(LENGTH) > 0
        assert total(run, "discarded_tokens") > 0
        thrown = run.attempts.ending == ENDINGS.index("restarted")
        lost = (run.attempts.last_token - run.attempts.first_token)[thrown].sum()
        assert total(run, "discarded_tokens") >= lost > 0
    else:
        assert total(run, "tokens") == LENGTH.sum()
    exact = replay(RUN, plan(), config(), Options(groups_wanted=3))
    assert run.steps[0].makespan_s < exact.steps[0].makespan_s * 1.5


def test_spare_complete_groups_count_towards_the_next_batch() -> None:
    options = ["placement.options.parking=false", "placement.options.more=1.5"]
    run = replay(RUN, plan(), config(OVERSAMPLING, *options), Options(groups_wanted=4))
    # of 6, 2 are spare; then 3 for 2 wanted, 1 spare; then 5 for 3, 2 spare; then the last 2
    assert [step.asked for step in run.steps] == [6 * 4, 3 * 4, 5 * 4, 2 * 4]
    assert total(run, "tokens") == LENGTH.sum()


@pytest.mark.parametrize("name", ["april", "partial_rollout", "roll_packer", "sorted_rl"])
def test_a_published_oversampling_policy_completes_every_group(name: str) -> None:
    run = replay(RUN, plan(), config(name), Options(groups_wanted=3))
    assert total(run, "finished") == total(run, "asked") == len(LENGTH)
    assert len(run.prompt_tokens) == len(LENGTH) + total(run, "restarted") + total(run, "expired")


# events


def test_a_death_costs_time_and_no_tokens() -> None:
    whole = replay(RUN, plan(), config())
    kill = (FleetEvent(Kind.KILL, at_s=0.5, step=1, replica=1),)
    run = replay(RUN, plan(), config(), Options(scenario=Happenings(kill)))
    assert total(run, "tokens") == total(whole, "tokens") == LENGTH.sum()
    assert run.steps[0] == whole.steps[0]
    assert run.steps[1].makespan_s > whole.steps[1].makespan_s
    lost = run.attempts.ending == ENDINGS.index("lost")
    assert lost.any()
    assert (run.attempts.end_s[lost] == run.steps[1].start_s + 0.5).all()
    assert not run.samples.alive[-1][1]


def test_when_all_are_dead_the_replay_says_so() -> None:
    kill = tuple(FleetEvent(Kind.KILL, at_s=0.5, replica=row) for row in range(2))
    with pytest.raises(FleetError, match="no replica is alive in step 0"):
        replay(RUN, plan(), config(), Options(scenario=Happenings(kill)))


def test_a_replica_that_joins_in_a_later_step_does_not_save_one_that_cannot_end() -> None:
    kill = tuple(FleetEvent(Kind.KILL, at_s=0.5, replica=row) for row in range(2))
    events = Happenings((*kill, FleetEvent(Kind.JOIN, at_s=0.0, step=3, replica=2)))
    with pytest.raises(FleetError, match="no replica is alive in step 0"):
        replay(RUN, plan(3, absent=(2,)), config(), Options(scenario=events))


def test_what_joins_is_used_from_then_on() -> None:
    join = FleetEvent(Kind.JOIN, at_s=2.0, replica=1)
    run = replay(RUN, plan(absent=(1,)), config(), Options(scenario=Happenings((join,))))
    there = run.attempts.start_s[run.attempts.replica == 1]
    assert there.min() >= 2.0
    assert total(run, "tokens") == LENGTH.sum()
    alive = np.array([alive[1] for alive in run.samples.alive])
    assert (alive == (np.array(run.samples.time_s) >= 2.0)).all()


TABLED = replace(
    SMALL, batch_points=(1, 2, 4, 8), batch_point_s=(0.01, 0.015, 0.016, 0.03), knee_s=0.02,
    prefill_token_s=0.02, prefill_step_s=0.03, request_s=0.01,
)  # fmt: skip
"""Prefills take seconds, so that the change comes in the middle of one."""


@pytest.mark.parametrize("profile", [FREE, SMALL, TABLED])
def test_at_half_the_speed_the_rest_takes_twice_as_long(profile: HardwareProfile) -> None:
    one = small_workload(steps=1, groups=1)
    fleet = FleetPlan(profile, 1)
    events = (FleetEvent(Kind.SPEED, at_s=1.0, replica=0, speed=0.5),)
    instant = Options(latency_s=0.0)
    whole = replay(one, fleet, config(), instant).steps[0].makespan_s
    slow = replay(one, fleet, config(), replace(instant, scenario=Happenings(events)))
    assert slow.steps[0].makespan_s == pytest.approx(1.0 + 2.0 * (whole - 1.0))


# weights of a stream


def test_kept_trajectories_go_on_under_the_new_weights() -> None:
    run = replay(RUN, plan(), config("sticky_least_inflight", LONG), stream())
    paused = replay(RUN, plan(), config("sticky_least_inflight", LONG), stream(seconds=2.0))
    assert total(run, "tokens") == total(paused, "tokens") == LENGTH.sum()
    span = [r.steps[-1].start_s + r.steps[-1].makespan_s for r in (run, paused)]
    updates = len(paused.steps) - 1
    assert span[1] > span[0] + 2.0 * (updates - 1)


def test_a_drained_fleet_is_empty_when_its_weights_are_replaced() -> None:
    run = replay(
        RUN, plan(), config("sticky_least_inflight", LONG), stream(update=Update.DRAIN, seconds=2.0)
    )
    assert total(run, "tokens") == LENGTH.sum()
    assert total(run, "expired") == 0
    a = run.attempts
    assert set(np.unique(a.ending)) <= {ENDINGS.index("finished"), ENDINGS.index("truncated")}
    edges = np.sort(np.concatenate((a.start_s, a.end_s)))
    idle = [
        (x, y)
        for x, y in pairwise(edges)
        if y - x >= 2.0 and not ((a.start_s < y) & (a.end_s > x)).any()
    ]
    assert 1 <= len(idle) < len(run.steps)  # batches may fill up while the fleet drains


def test_an_aborting_update_sends_all_back_to_wait_with_their_tokens() -> None:
    run = replay(
        RUN, plan(), config("sticky_least_inflight", LONG), stream(update=Update.ABORT, seconds=1.0)
    )
    assert total(run, "tokens") == LENGTH.sum()
    a = run.attempts
    cut = a.ending == ENDINGS.index("interrupted")
    assert cut.any()
    for at_s in np.unique(a.end_s[cut]):
        assert not ((a.start_s < at_s) & (a.end_s > at_s)).any()
        assert not ((a.start_s >= at_s) & (a.start_s < at_s + 1.0)).any()


def test_weights_may_change_at_given_times_instead_of_after_every_batch() -> None:
    run = replay(
        RUN, plan(), config("sticky_least_inflight", LONG),
        stream(update=Update.ABORT, at_s=(1.0, 2.5)),
    )  # fmt: skip
    cut = run.attempts.end_s[run.attempts.ending == ENDINGS.index("interrupted")]
    times = np.unique(cut)
    assert len(times) == 2
    assert times == pytest.approx([1.0, 2.5], abs=0.11)  # at the next tick


def test_beyond_the_lag_bound_a_stream_gets_fresh_samples() -> None:
    run = replay(RUN, plan(), config("sticky_least_inflight", "max_lag=0"), stream())
    assert total(run, "expired") > 0
    assert total(run, "discarded_tokens") > 0
    assert total(run, "finished") == len(LENGTH)
    assert len(run.prompt_tokens) == len(LENGTH) + total(run, "expired")
    asked = sum(step.asked * step.mean_length_asked for step in run.steps)
    kept = sum(step.asked * step.mean_length_kept for step in run.steps)
    assert asked == pytest.approx(LENGTH.sum())
    assert kept == pytest.approx(total(run, "tokens"))


def test_the_same_scenario_gives_the_same_replay() -> None:
    events = (
        FleetEvent(Kind.KILL, at_s=1.0, replica=1),
        FleetEvent(Kind.SPEED, 2.0, speed=2.0, replica=0),
    )
    first, again = (
        replay(RUN, plan(3), config("tail_planner", "max_lag=0"), stream(events)) for _ in range(2)
    )
    assert first.steps == again.steps
    for name, column in asdict(first.attempts).items():
        np.testing.assert_array_equal(column, getattr(again.attempts, name))


def test_estimators_learn_from_the_counters_how_much_is_accepted() -> None:
    fleet = plan(acceptance=(0.9, 0.6), draft_tokens=2)
    world, estimator = World(fleet), Acceptance()
    world.admit(small_workload(steps=1, groups=4).steps[0])
    for tick in range(40):
        seen = world.observe(TrainerSignal())
        rows = np.flatnonzero(seen.trajectories.phase == Phase.QUEUED)
        world.apply([place(seen, int(row), int(row) % 2, "test", "") for row in rows])
        estimator.observe(seen)
        world.advance(0.1 * (tick + 1))
    learned = estimator.forecast(seen).acceptance[:, :2]
    assert learned == pytest.approx(np.array([[0.9, 0.6]] * 2), abs=0.05)


def test_drafting_that_is_accepted_is_faster_and_changes_no_tokens() -> None:
    plain = replay(RUN, plan(), config())
    drafted = replay(RUN, plan(acceptance=(0.9, 0.8), draft_tokens=2), config())
    assert total(plain, "tokens") == total(drafted, "tokens")
    for slow, fast in zip(plain.steps, drafted.steps, strict=True):
        assert fast.makespan_s < 0.9 * slow.makespan_s
    drop = (FleetEvent(Kind.ACCEPTANCE, at_s=0.0, step=2, acceptance=(0.0, 0.0)),)
    dropped = replay(
        RUN, plan(acceptance=(0.9, 0.8), draft_tokens=2), config(),
        Options(scenario=Happenings(drop)),
    )  # fmt: skip
    assert dropped.steps[1] == drafted.steps[1]
    assert dropped.steps[2].makespan_s > plain.steps[2].makespan_s


def test_verifying_costs_its_seconds_while_anything_is_drafted_and_none_otherwise() -> None:
    """Nothing is accepted, and what depends on the batch costs nothing: M alone counts."""
    fleet = FleetPlan(
        replace(FREE, sequence_s=0.0), 1, acceptance=(0.0, 0.0), verify_s=0.004, draft_tokens=2
    )
    one, instant = small_workload(steps=1, groups=1), Options(latency_s=0.0)
    drafted = replay(one, fleet, config(), instant).steps[0].makespan_s
    plain = replay(one, replace(fleet, draft_tokens=0), config(), instant).steps[0].makespan_s
    assert drafted == pytest.approx(plain * 1.4)


# drafts for the critical path


def drafting_config(policy: str) -> Config:
    """Placement draws no lots: runs of which one is faster stay paired."""
    return config("round_robin", f"speculation.name={policy}", "tick_s=0.25")


TAIL = Lengths(steps=6, groups=8, group_size=8, median_tokens=1500, p90_over_p50=3.0)


def drafting_replay(policy: str, ratio: float, seed: int, collapse: int | None = None) -> Result:
    """Four replicas; v0 is `ratio` of M; all drafts fail from step `collapse` on."""
    profile = load_profile("qwen3-8b-h100-tp1")
    verify_s = ratio * profile.replica_spec().fixed_s
    fleet = FleetPlan(
        replace(profile, max_num_seqs=64), 4, acceptance=(0.8,) * 8, verify_s=verify_s
    )
    drop = FleetEvent(Kind.ACCEPTANCE, at_s=0.0, step=collapse, acceptance=(0.0,) * 8)
    happens = Happenings(()) if collapse is None else Happenings((drop,))
    return replay(made_up(TAIL, seed), fleet, drafting_config(policy), Options(scenario=happens))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.4])
def test_good_drafts_halve_a_step_and_a_collapse_costs_a_hundredth_of_one(ratio: float) -> None:
    found = []
    for seed in range(3):
        off = drafting_replay("unchanged", 0.0, seed)
        ours = drafting_replay("critical_path", ratio, seed, collapse=3)
        took = [ours.steps[i].makespan_s / off.steps[i].makespan_s for i in range(len(off.steps))]
        assert max(took[:3]) < 0.5
        found += took[3:]
    assert np.max(found) <= 1.01


# bounds


@given(seed=st.integers(0, 10_000), drafted=st.integers(0, 3))
@settings(deadline=None, max_examples=12)
def test_no_policy_beats_a_bound_on_mixed_hardware_that_drafts(seed: int, drafted: int) -> None:
    table = load_profile("qwen3-30b-a3b-h200-tp1")
    slow = replace(SMALL, fixed_s=0.03, sequence_s=0.0002, max_num_seqs=12)
    fleet = FleetPlan(
        SMALL, 3, speeds=(1.0, 2.0, 0.5), profiles=(SMALL, slow, replace(table, max_num_seqs=4)),
        acceptance=(0.9, 0.7, 0.4), draft_token_s=0.001, draft_tokens=drafted,
    )  # fmt: skip
    given_ = small_workload(steps=1, groups=5, seed=seed)
    (step,) = given_.steps
    run = replay(given_, fleet, config())
    best = bounds(step.length, step.prompt_tokens, fleet)
    assert 0 < best.best_s <= run.steps[0].makespan_s


def test_the_bounds_of_two_kinds_lie_between_those_of_each() -> None:
    (step,) = small_workload(steps=1, groups=8).steps
    fast = replace(SMALL, fixed_s=0.005, sequence_s=0.0005)
    kinds = ((SMALL, SMALL), (SMALL, fast), (fast, fast))
    slow, mixed, quick = (
        bounds(step.length, step.prompt_tokens, FleetPlan(SMALL, 2, profiles=own)) for own in kinds
    )
    for name in ("work_s", "average_s", "memory_s"):
        assert getattr(quick, name) <= getattr(mixed, name) <= getattr(slow, name)
    assert quick.longest_s == mixed.longest_s < slow.longest_s
