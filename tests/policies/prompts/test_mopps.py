"""MoPPS: a Beta posterior that forgets, and pass rates drawn from it."""

import numpy as np
import pytest
from support.prompt_world import PromptWorld, candidates, finished, request

from steersman.policies.prompts.dynamic_sampling import DynamicSampling
from steersman.policies.prompts.mopps import MoPPS


def test_informative_groups_cost_fewer_samples_than_with_dynamic_sampling() -> None:
    """Once the prompts are known, on a world where most groups teach nothing."""
    cost = []
    for policy in (MoPPS(), DynamicSampling()):
        steps = PromptWorld(seed=2).run(policy, steps=30, wanted=32)[15:]
        cost.append(sum(s.samples for s in steps) / sum(s.informative for s in steps))
    assert cost[0] < 0.75 * cost[1]


def test_the_posterior_forgets_towards_the_prior_at_each_visit() -> None:
    policy = MoPPS(memory=0.5)
    for _ in range(2):
        policy.learn(finished([[1.0, 1.0, 1.0, 0.0]]))
    # Beta(1, 1) -> (1 + 3, 1 + 1) -> (2 + 0.5 + 3, 1 + 0.5 + 1)
    assert policy.state_dict()["values"] == [[5.5], [2.5]]


def test_fractional_rewards_count_in_part_on_the_trainers_scale() -> None:
    policy = MoPPS(memory=1.0, reward_low=-1.0, reward_high=1.0)
    policy.learn(finished([[-1.0, 0.0, 1.0, 7.0]]))
    assert policy.state_dict()["values"] == [[1 + 2.5], [1 + 1.5]]


@pytest.mark.parametrize("uniform_share", [0.0, 0.25])
def test_prompts_near_the_target_are_preferred_but_none_is_given_up(uniform_share: float) -> None:
    policy = MoPPS(uniform_share=uniform_share)
    policy.learn(finished([[0.0] * 8, [1.0] * 8, [0.0, 1.0] * 4, [0.0, 1.0] * 4]))
    drawn = np.zeros(4)
    for seed in range(800):
        choice = policy.choose(request(candidates(4), wanted=2), np.random.default_rng(seed))
        drawn[choice.row] += 1
    assert drawn[2:].min() > 1.5 * drawn[:2].max()
    assert drawn.min() > 0


def test_a_uniform_share_bounds_the_weights() -> None:
    policy = MoPPS(uniform_share=0.1)
    policy.learn(finished([[0.0] * 400] * 40))
    choice = policy.choose(request(candidates(100), wanted=20), np.random.default_rng(0))
    assert choice.inclusion_probability.min() >= 0.1 * 20 / 100
