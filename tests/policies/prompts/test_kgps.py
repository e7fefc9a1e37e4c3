"""KGPS: a Kalman belief, widened by policy updates."""

from typing import Literal

import numpy as np
import pytest
from support.prompt_world import PromptWorld, candidates, finished, request

from steersman.policies.prompts.dynamic_sampling import DynamicSampling
from steersman.policies.prompts.kgps import KalmanGuided

State = Literal["logit", "arcsine"]
both_states = pytest.mark.parametrize("state", ["logit", "arcsine"])


@both_states
def test_informative_groups_cost_fewer_samples_than_with_dynamic_sampling(state: State) -> None:
    cost = []
    for policy in (KalmanGuided(state=state), DynamicSampling()):
        steps = PromptWorld(seed=2).run(policy, steps=30, wanted=32)[15:]
        cost.append(sum(s.samples for s in steps) / sum(s.informative for s in steps))
    assert cost[0] < 0.65 * cost[1]


@both_states
def test_the_utility_is_the_expected_variance_of_a_reward(state: State) -> None:
    """Against plain Monte Carlo."""
    rng = np.random.default_rng(0)
    mean = np.array([-2.0, 0.0, 1.0]) if state == "logit" else np.array([0.2, 0.8, 1.3])
    variance = np.array([0.5, 2.0, 0.01]) / (1 if state == "logit" else 40)
    x = mean + np.sqrt(variance) * rng.normal(size=(200_000, 3))
    p = 1 / (1 + np.exp(-x)) if state == "logit" else np.sin(x) ** 2
    expected = (p * (1 - p)).mean(axis=0)
    assert KalmanGuided(state=state).utility(mean, variance) == pytest.approx(expected, rel=0.01)


def versions_until_revisited(policy: KalmanGuided, kl: float | None) -> int:
    """Of a prompt that always passed, where the only other one is known to pass 15 of 16 times."""
    rng, offered = np.random.default_rng(0), candidates(2)
    policy.choose(request(offered, wanted=1, weight_version=0), rng)
    policy.learn(finished([[1.0] * 16] * 2, prompt_key=offered.prompt_key[[0, 0]]))
    other = finished([[1.0] * 15 + [0.0]] * 5, prompt_key=offered.prompt_key[[1] * 5])
    for version in range(1, 400):
        policy.learn(other)
        asked = request(offered, wanted=1, weight_version=version, policy_kl=kl)
        if policy.choose(asked, rng).row[0] == 0:
            return version
    return 400


@both_states
def test_a_prompt_found_easy_is_visited_again_the_sooner_the_more_the_policy_moves(
    state: State,
) -> None:
    slow = versions_until_revisited(KalmanGuided(state=state), kl=0.001)
    fast = versions_until_revisited(KalmanGuided(state=state), kl=0.01)
    assert 1 < fast < slow < 400
    assert versions_until_revisited(KalmanGuided(state=state), kl=0.0) == 400
    assert versions_until_revisited(KalmanGuided(state=state), kl=None) == slow


@both_states
def test_a_belief_never_knows_less_than_of_an_unseen_prompt(state: State) -> None:
    policy, rng, offered = KalmanGuided(state=state), np.random.default_rng(0), candidates(2)
    policy.choose(request(offered, wanted=1, weight_version=0), rng)
    policy.learn(finished([[1.0, 1.0, 1.0, 0.0]]))
    before = policy._belief(offered.prompt_key)[1]
    policy.choose(request(offered, wanted=1, weight_version=10**6), rng)
    mean, variance = policy._belief(offered.prompt_key)
    assert before[0] < before[1]
    assert variance[0] == variance[1] == before[1]
    assert mean[0] > mean[1]


def test_a_uniform_share_gives_every_prompt_a_chance() -> None:
    policy = KalmanGuided(uniform_share=0.2)
    policy.learn(finished([[1.0] * 16, [0.0] * 16]))
    drawn = np.zeros(20)
    for seed in range(300):
        choice = policy.choose(request(candidates(20), wanted=5), np.random.default_rng(seed))
        drawn[choice.row] += 1.0 / choice.inclusion_probability
    assert drawn[:2] / 300 == pytest.approx(np.ones(2), abs=0.8)
    assert drawn.min() > 0
