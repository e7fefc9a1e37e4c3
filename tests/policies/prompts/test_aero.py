"""AERO rescues prompts that never passed, and rejects surplus failures."""

import numpy as np
import pytest
from support.prompt_games import fill, finished, request, trained

from steersman.policies.prompts.aero import Aero
from steersman.policies.prompts.uniform import Uniform

RNG = np.random.default_rng(0)


def aero(**options: float) -> Aero:
    policy = Aero(**options)
    policy.choose(request(group_size=8), RNG)
    return policy


def test_rescues_find_passes_that_the_exploration_missed() -> None:
    hard = np.full(2000, 0.1)
    rescued = fill(Aero(budget=2.0, train_degenerate=False), hard, groups_wanted=400, group_size=8)
    explored = 1.0 - 0.9**4
    assert rescued.informative / (rescued.samples / 8) > explored
    assert rescued.accepted == rescued.informative >= 400


def test_it_rolls_out_less_than_whole_groups_of_easy_and_hopeless_prompts_need() -> None:
    rates = np.random.default_rng(1).beta(0.5, 0.5, 1000)
    staged, whole = fill(Aero(), rates, 500), fill(Uniform(), rates, 500)
    assert staged.accepted == whole.accepted == 500
    assert staged.samples < 0.9 * whole.samples


def test_a_prompt_that_never_passed_gets_two_samples_until_one_passes_or_its_budget_is_spent() -> (
    None
):
    policy = aero()
    assert policy.extend(finished([[0.0] * 4]), RNG).tolist() == [2]
    assert policy.extend(finished([[0.0] * 6]), RNG).tolist() == [2]
    assert policy.extend(finished([[0.0] * 8]), RNG).tolist() == [0]
    assert policy.extend(finished([[0.0] * 5 + [1.0]]), RNG).tolist() == [0]


def test_the_last_rescue_stays_within_the_budget() -> None:
    assert aero(extra=3).extend(finished([[0.0] * 7]), RNG).tolist() == [1]


def test_middle_prompts_get_their_whole_group_and_easy_ones_nothing() -> None:
    explored = finished([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    assert aero().extend(explored, RNG).tolist() == [4, 0, 0]


def test_failures_beyond_k_per_pass_are_not_trained_on_and_passes_always_are() -> None:
    groups = finished([[1, 0, 0, 0, 0, 0, 1, 0], [1] * 6 + [0, 0]])
    assert trained(groups, aero().select(groups, RNG)) == [[0, 0, 1, 1], [0, 0] + [1] * 6]
    twice = aero(failures_per_pass=2.0).select(groups, RNG)
    assert trained(groups, twice) == [[0] * 4 + [1, 1], [0, 0] + [1] * 6]


def test_every_failure_is_as_likely_to_be_kept_as_any_other() -> None:
    groups, policy = finished([[1, 0, 0, 0, 0]]), aero()
    kept = sum(policy.select(groups, RNG).train.astype(int) for _ in range(2000))
    assert kept[0] == 2000
    assert kept[1:] == pytest.approx(500, abs=80)


def test_degenerate_groups_keep_an_advantage_against_the_posteriors_mean() -> None:
    groups = finished([[1.0] * 4, [0.0] * 4])
    assert aero().baseline(groups) == pytest.approx([5 / 6, 1 / 6])
    assert aero().select(groups, RNG).accepted.all()
    assert not aero(train_degenerate=False).select(groups, RNG).accepted.any()


def test_unknown_rewards_count_neither_as_passed_nor_as_failed() -> None:
    unknown = finished([[1.0] * 4 + [float("nan")] * 4])
    assert aero().baseline(unknown) == aero().baseline(finished([[1.0] * 4]))


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="extra is 0"):
        Aero(extra=0)
