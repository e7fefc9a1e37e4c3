"""POPO replays the latest informative groups in place of degenerate ones."""

import numpy as np
import pytest
from support.prompt_games import fill, finished

from steersman.estimators.lifecycle import CorrectnessClass
from steersman.policies.prompts.dynamic_sampling import DynamicSampling
from steersman.policies.prompts.popo import Popo

MIXED, ALIKE = [0.0, 1.0], [1.0, 1.0]
RNG = np.random.default_rng(0)


def test_as_many_groups_that_teach_as_dynamic_sampling_with_fewer_rollouts() -> None:
    rng = np.random.default_rng(1)
    policy, groups, replayed, rollouts = Popo(), 0, 0, [0, 0]
    for step in range(20):
        rates = rng.beta(0.5, 0.5, 400)
        batch = fill(policy, rates, groups_wanted=32, step=step, seed=step)
        full = fill(DynamicSampling(), rates, groups_wanted=32, step=step, seed=step)
        groups += batch.informative + batch.replayed
        replayed += batch.replayed
        rollouts[0] += batch.samples
        rollouts[1] += full.samples
    assert groups >= 0.95 * 20 * 32
    assert replayed < 0.5 * groups
    assert rollouts[0] < 0.6 * rollouts[1]


def test_the_most_recent_informative_groups_are_replayed_once_and_never_in_their_own_step() -> None:
    policy = Popo()
    first = policy.select(finished([MIXED, MIXED, ALIKE], version=0, first_id=10), RNG)
    assert first.replayed.tolist() == []
    second = policy.select(finished([MIXED, ALIKE], version=1, first_id=20), RNG)
    assert second.replayed.tolist() == [11]
    third = policy.select(finished([ALIKE, ALIKE, ALIKE], version=2, first_id=30), RNG)
    assert third.replayed.tolist() == [20, 10]


def test_a_degenerate_group_counts_only_where_nothing_recent_enough_is_there() -> None:
    policy = Popo(max_age=4)
    policy.select(finished([MIXED], version=0, first_id=1), RNG)
    late = policy.select(finished([ALIKE, MIXED], version=5, first_id=5), RNG)
    assert late.replayed.tolist() == []
    assert late.accepted.tolist() == [True, True]
    assert late.correctness is CorrectnessClass.EXACT
    in_time = policy.select(finished([ALIKE, MIXED], version=9, first_id=9), RNG)
    assert in_time.replayed.tolist() == [6]
    assert in_time.accepted.tolist() == [False, True]
    assert in_time.correctness is CorrectnessClass.CORRECTED


def test_every_batch_is_full_after_one_round() -> None:
    policy, rates = Popo(), np.random.default_rng(2).beta(0.3, 0.3, 100)
    for step in range(10):
        batch = fill(policy, rates, groups_wanted=16, step=step, seed=step)
        assert (batch.rounds, batch.accepted + batch.replayed) == (1, 16)


def test_the_store_is_bounded_and_survives_a_restart() -> None:
    policy = Popo(capacity=3)
    policy.select(finished([MIXED] * 10), RNG)
    other = Popo(capacity=3)
    other.load_state_dict(policy.state_dict())
    assert other.select(finished([ALIKE] * 5, version=1), RNG).replayed.tolist() == [9, 8, 7]


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="max_age is 0"):
        Popo(max_age=0)
