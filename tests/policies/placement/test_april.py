"""APRIL, and what it shares with the other policies that end a step early."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.batches import (
    DEFAULT,
    SEEDS,
    TIGHT,
    answers,
    discarded,
    mean_tokens,
    run,
    seconds,
    tokens,
)
from support.observations import (
    ended_table,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.controller.config import load_config
from steersman.controller.plugins import load
from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_VERSION, Objective, Observation, TrainerSignal
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._cut import Batch, may_wait, put_off
from steersman.policies.placement.april import April

R, Q, E, P = Phase.RUNNING, Phase.QUEUED, Phase.ENDED, Phase.PARKED
BATCH = TrainerSignal(step=3, weight_version=3, max_lag=1, groups_wanted=2)


def seen(
    groups: list[int], phase: list[int], trainer: TrainerSignal = BATCH, **columns: object
) -> Observation:
    """Groups of one trajectory each, with these ids and phases, on two replicas."""
    rows = [0 if p == R else -1 for p in phase]
    columns.setdefault("oldest_weight_version", [3 if p == R else NO_VERSION for p in phase])
    table = trajectory_table(phase, trajectory_id=groups, replica_row=rows, **columns)
    return observation(
        table, replica_table(2), trainer=trainer, groups=group_table(len(groups), group_id=groups)
    )


def decide(policy: PlacementPolicy, now: Observation) -> list[Decision]:
    return policy.decide(now, Forecast.unknown(now), np.random.default_rng(0))


def actions(decisions: list[Decision]) -> dict[int, Action]:
    return {d.trajectory_id: d.action for d in decisions}


def test_a_full_batch_puts_off_what_runs_and_what_waits() -> None:
    policy = April()
    assert actions(decide(policy, seen([1, 2, 3, 4], [R, R, R, Q]))) == {4: Action.PLACE}
    assert not decide(policy, seen([2, 3, 4], [R, R, R]))
    assert actions(decide(policy, seen([3, 4], [R, Q]))) == {3: Action.DEFER, 4: Action.DEFER}


def test_a_batch_is_counted_anew_in_every_step() -> None:
    policy = April()
    decide(policy, seen([1, 2, 3, 4], [R] * 4))
    decide(policy, seen([3, 4], [R] * 2))
    later = replace(BATCH, step=4)
    assert actions(decide(policy, seen([3, 4], [Q, Q], later))) == {
        3: Action.PLACE,
        4: Action.PLACE,
    }


def test_a_group_that_began_and_ended_between_two_looks_counts() -> None:
    batch = Batch()
    batch.follow(seen([1], [R]))
    now = replace(seen([1], [R]), ended=ended_table([5, 6], group_id=[7, 7]))
    batch.follow(now)
    assert (batch.ready, batch.full) == (1, False)


@pytest.mark.parametrize(
    "trainer", [replace(BATCH, groups_wanted=0), replace(BATCH, objective=Objective.STREAM)]
)
def test_a_trainer_that_needs_all_and_a_stream_are_never_cut(trainer: TrainerSignal) -> None:
    policy = April()
    decide(policy, seen([1, 2, 3], [R] * 3, trainer))
    assert actions(decide(policy, seen([3, 9], [R, Q], trainer))) == {9: Action.PLACE}


def test_without_lag_nothing_is_put_off() -> None:
    policy, strict = April(), replace(BATCH, max_lag=0)
    decide(policy, seen([1, 2, 3], [R] * 3, strict))
    assert actions(decide(policy, seen([3, 4], [R, Q], strict))) == {4: Action.PLACE}


def test_a_group_waits_only_if_its_oldest_sample_may_ended_ones_counted() -> None:
    table = trajectory_table(
        [E, R, R, R], 2, replica_row=[-1, 0, 0, 0], oldest_weight_version=[2, 3, 3, 3]
    )
    now = observation(table, replica_table(1), trainer=BATCH)
    assert may_wait(now).tolist() == [False, False, True, True]


def test_discarding_restarts_what_has_written_and_parks_what_has_not() -> None:
    now = seen([1, 2, 3, 4], [R, R, Q, P], generated_tokens=[9, 0, 0, 5])
    every = np.ones(4, dtype=np.bool_)
    assert actions(put_off(now, every, False, "x", "why")) == {
        1: Action.RESTART,
        2: Action.DEFER,
        3: Action.DEFER,
    }
    assert set(actions(put_off(now, every, True, "x", "why")).values()) == {Action.DEFER}


def test_it_asks_for_as_many_batches_as_it_is_told() -> None:
    policy = April(oversampling=1.5)
    assert policy.groups_to_ask(8) == 12
    decide(policy, seen([1], [R], replace(BATCH, groups_wanted=8)))
    assert policy.groups_to_ask(6) == 10  # two are complete already


@pytest.mark.parametrize("name", ["april", "sorted_rl", "roll_packer", "partial_rollout"])
def test_a_policy_restored_in_a_full_step_goes_on_as_the_saved_one(name: str) -> None:
    saved, restored = (load("policies.placement", name)() for _ in range(2))
    for now in (seen([1, 2, 3, 4], [R, R, R, Q]), seen([3, 4], [R, R])):
        decide(saved, now)
    restored.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    assert restored.groups_to_ask(2) == saved.groups_to_ask(2)
    for now in (seen([3, 4], [R, Q]), seen([3, 4, 5], [Q, Q, Q], replace(BATCH, step=4))):
        assert decide(restored, now) == decide(saved, now) != []


def test_fewer_than_a_batch_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"oversampling is 0\.5"):
        April(oversampling=0.5)


def test_the_configuration_lets_it_park_a_whole_step_at_once() -> None:
    config = load_config(None, ["placement.name=april"], environ={})
    assert (config.guard.max_moves_per_tick, config.max_lag) == (1_000_000, 8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_strong_tail_ends_sooner_with_the_same_answers(seed: int) -> None:
    base, ours = run(DEFAULT, seed), run("april", seed)
    assert (answers(ours), tokens(ours)) == (answers(base), tokens(base))
    assert discarded(ours) == 0
    assert seconds(ours) < 0.75 * seconds(base)


@pytest.mark.parametrize("seed", SEEDS)
def test_short_answers_come_first(seed: int) -> None:
    mean = mean_tokens(run("april", seed))
    assert mean[0] < 0.8 * np.mean(mean)


def test_scarce_memory_is_preempted_more_often() -> None:
    plan = FleetPlan(TIGHT, 2)
    base, ours = (
        sum(run(name, seed, plan=plan).preemptions for seed in SEEDS) for name in (DEFAULT, "april")
    )
    assert ours > 10 * base
