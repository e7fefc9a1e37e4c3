"""PODS keeps the subset of a group whose rewards vary most."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.prompt_games import finished, request, trained

from steersman.policies.prompts.pods import Pods, widest

RNG = np.random.default_rng(0)
REWARDS = st.lists(st.integers(-5, 5), min_size=2, max_size=9)


@given(REWARDS, st.integers(1, 9))
def test_no_other_subset_of_that_size_varies_more(rewards: list[int], keep: int) -> None:
    keep = min(keep, len(rewards))
    reward = np.array([rewards], dtype=np.float64)
    chosen = widest(reward, keep)[0]
    assert len(set(chosen.tolist())) == keep
    best = max(np.var(subset) for subset in combinations(rewards, keep))
    assert np.var(reward[0, chosen]) == pytest.approx(best, abs=1e-9)


def test_large_equal_parts_of_the_rewards_do_not_drown_their_differences() -> None:
    reward = 1e8 + np.array([[0.0, 0.5, 0.5, 1.0]])
    assert sorted(widest(reward, 2)[0].tolist()) == [0, 3]


def test_a_quarter_of_each_group_is_trained_on_half_of_it_passes() -> None:
    groups = finished([[1] * 10 + [0] * 6, [1.0] * 16, [1, 0] * 4, [1]])
    selection = Pods().select(groups, RNG)
    assert trained(groups, selection) == [[0, 0, 1, 1], [1] * 4, [0, 1], [1]]
    assert selection.accepted.all()


def test_a_reward_that_is_not_known_is_no_extreme_one() -> None:
    groups, policy = finished([[1, 0, np.nan, 0.5], [np.nan] * 4]), Pods(train_share=0.5)
    train = policy.select(groups, RNG).train
    assert train[:4].tolist() == [True, True, False, False]
    assert train[4:].sum() == 2


def test_equal_rewards_are_told_apart_at_random() -> None:
    groups, policy = finished([[1, 0, 0, 0]]), Pods(train_share=0.5)
    kept = sum(policy.select(groups, RNG).train.astype(int) for _ in range(1500))
    assert kept[0] == 1500
    assert kept[1:] == pytest.approx(500, abs=80)


def test_the_trainer_asks_for_whole_groups_and_is_told_what_is_kept() -> None:
    choice = Pods().choose(request(groups_wanted=3, group_size=16), RNG)
    assert choice.size.tolist() == [16] * 3
    assert choice.reason == "4 of 16 are trained on"


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="train_share is 0"):
        Pods(train_share=0.0)
