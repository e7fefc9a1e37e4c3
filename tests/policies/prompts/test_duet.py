"""DUET: samples by spread over the root of length, within a token budget."""

from typing import Literal

import numpy as np
import pytest
from support.prompt_world import PromptWorld, candidates, finished, request

from steersman.policies.prompting import PromptChoice
from steersman.policies.prompts.duet import Duet


def test_samples_go_with_the_spread_and_against_the_root_of_the_length() -> None:
    spread, length = np.array([0.5, 0.5, 0.25, 0.4]), np.array([100.0, 400.0, 100.0, 900.0])
    size, cap = Duet(most_samples=10_000).allocate(spread, length, 200 * length.sum())
    expected = spread / np.sqrt(length)
    assert size / size[0] == pytest.approx(expected / expected[0], rel=0.02)
    assert cap == pytest.approx(size * length, rel=0.02)


@pytest.mark.parametrize("budget", [0.5, 1.0])
def test_the_budget_of_tokens_is_met(budget: float) -> None:
    rng = np.random.default_rng(0)
    spread, length = rng.random(256) + 0.1, np.exp(rng.normal(6.0, 0.8, 256))
    size, _ = Duet().allocate(spread, length, budget * 8 * length.sum())
    assert size @ length == pytest.approx(budget * 8 * length.sum(), rel=0.01)
    assert size.min() >= 1
    assert size.max() <= 32


def test_a_step_costs_its_budget_though_the_gate_makes_it_ask_again() -> None:
    world, policy = PromptWorld(seed=3), Duet(budget=0.75)
    steps = world.run(policy, steps=20, wanted=32)[10:]
    assert max(len(step.groups) for step in steps) > 1
    tokens = sum(int(groups.tokens.sum()) for step in steps for groups in step.groups)
    assert tokens == pytest.approx(10 * 0.75 * 32 * 8 * 100, rel=0.1)


def choice_of(policy: Duet, wanted: int = 4, seed: int = 0, known: bool = True) -> PromptChoice:
    offered = candidates(wanted, mean_tokens=np.full(wanted, 200.0 if known else np.nan))
    return policy.choose(request(offered, wanted), np.random.default_rng(seed))


def test_prompts_whose_rewards_differ_get_the_samples_of_those_whose_do_not() -> None:
    policy = Duet(least_gate=1.0)
    policy.learn(finished([[1.0] * 8, [0.0] * 8, [0.0, 1.0] * 4, [0.0] * 7 + [1.0]]))
    size = choice_of(policy).size
    assert size[0] == size[1] < size[3] < size[2]


def test_the_gate_is_drawn_with_the_stated_probability() -> None:
    policy = Duet()
    policy.learn(finished([[1.0] * 8, [0.0, 1.0] * 4, [0.0] * 7 + [1.0], [0.0] * 8]))
    passed = np.zeros(4)
    for seed in range(800):
        choice = choice_of(policy, seed=seed)
        passed[choice.row] += 1.0 / choice.inclusion_probability / 800
    assert passed == pytest.approx(np.ones(4), abs=0.3)
    assert choice.inclusion_probability.min() >= 0.05


def test_nothing_known_is_the_trainers_group_size_for_all() -> None:
    choice = choice_of(Duet(), known=False)
    assert choice.size.tolist() == [8] * 4
    assert choice.inclusion_probability.tolist() == [1.0] * 4


@pytest.mark.parametrize("caps", [True, False])
def test_token_caps_can_be_left_to_the_trainer(caps: bool) -> None:
    policy = Duet(token_caps=caps, least_gate=1.0)
    policy.learn(finished([[1.0] * 8, [0.0, 1.0] * 4]))
    cap = choice_of(policy, wanted=2).max_new_tokens
    assert (cap.min() < 1024) == caps
    assert cap.max() == 1024


@pytest.mark.parametrize("signal", ["reward", "logprob"])
def test_the_spread_is_averaged_over_the_groups_of_a_prompt(
    signal: Literal["reward", "logprob"],
) -> None:
    policy = Duet(signal=signal)
    logprob = np.tile([-0.5, -1.0], 2)
    for rewards in ([0.0, 1.0, 0.0, 1.0], [1.0] * 4):
        policy.learn(finished([rewards], mean_logprob=logprob, tokens=np.array([10, 20, 10, 20])))
    groups, spread, told, length = (
        column[0] for column in policy.state_dict()["prompts"]["values"]
    )
    # advantages -1 and 1 times summed log-probabilities -5 and -20: deviation 12.5, then 0
    expected = 0.5 / 2 if signal == "reward" else 12.5 / 2
    assert (groups, told, length) == (2, 2, 15.0)
    assert spread == pytest.approx(expected, rel=1e-4)


def test_without_log_probabilities_that_signal_teaches_lengths_only() -> None:
    policy = Duet(signal="logprob")
    policy.learn(finished([[0.0, 1.0]]))
    assert policy.state_dict()["prompts"]["values"] == [[0.0], [0.0], [1.0], [100.0]]
    assert len(choice_of(policy)) == 4
