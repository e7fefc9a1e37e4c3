"""prime-rl's pools: the latest group mean decides how often a prompt is drawn."""

import numpy as np
import pytest
from support.prompt_world import candidates, finished, request

from steersman.estimators.errors import InvalidInputError
from steersman.policies.prompts.difficulty_pools import DifficultyPools


def test_normal_and_unseen_prompts_are_drawn_five_times_as_often_as_hard_and_easy_ones() -> None:
    policy = DifficultyPools()
    means = [0.0, 0.25, 0.3, 0.75, 0.8, 1.0] * 10
    policy.learn(finished([[mean] * 4 for mean in means]))
    drawn = np.zeros(80)
    for seed in range(400):
        choice = policy.choose(request(candidates(80), wanted=8), np.random.default_rng(seed))
        drawn[choice.row] += 1 / 400
    pools = drawn[:60].reshape(10, 6).mean(axis=0)
    hard, normal, easy = pools[[0, 1]].mean(), pools[[2, 3]].mean(), pools[[4, 5]].mean()
    assert normal / hard == pytest.approx(5.0, rel=0.2)
    assert normal / easy == pytest.approx(5.0, rel=0.2)
    assert normal == pytest.approx(drawn[60:].mean(), rel=0.1)


def test_the_latest_group_of_a_prompt_decides() -> None:
    policy, asked = DifficultyPools(), request(candidates(2), wanted=1)
    policy.learn(finished([[1.0] * 4, [0.5] * 4]))
    same_prompt_twice = np.full(2, candidates(1).prompt_key[0])
    policy.learn(finished([[0.0] * 4, [0.5] * 4], prompt_key=same_prompt_twice))
    choice = policy.choose(asked, np.random.default_rng(0))
    assert choice.inclusion_probability.tolist() == [0.5]


def test_a_pool_that_would_never_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="above 0"):
        DifficultyPools(easy_weight=0.0)
