"""Knapsack RL: the batch's samples where they are worth most."""

import numpy as np
import pytest
from support.prompt_world import candidates, finished, request

from steersman.policies.prompts.knapsack import Knapsack, most_valuable


def dynamic_programme(rate: np.ndarray, count: int, least: int, most: int) -> float:
    """Best sum of values with `count` samples more than the least, by the full table."""
    best = np.full(count + 1, -np.inf)
    best[0] = 0.0
    for p in rate:
        after = np.full(count + 1, -np.inf)
        for more in range(min(most - least, count) + 1):
            n = least + more
            value = (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2
            gained = best[: count + 1 - more] + value
            after[more:] = np.maximum(after[more:], gained)
        best = after
    return float(best[count])


@pytest.mark.parametrize("count", [1, 7, 40, 90])
def test_the_largest_steps_reach_the_optimum_of_the_dynamic_programme(count: int) -> None:
    rate = np.array([0.05, 0.125, 0.3, 0.5, 0.875, 0.9, 0.01, 0.5])
    more = most_valuable(rate, count, 2, 16)
    n = more + 2
    assert more.sum() == count
    assert n.max() <= 16
    value = ((1 - rate**n - (1 - rate) ** n) * rate * (1 - rate) ** 2).sum()
    assert value == pytest.approx(dynamic_programme(rate, count, 2, 16), rel=1e-9)


def sizes(rewards: list[list[float]], wanted: int, group_size: int = 8) -> list[int]:
    policy = Knapsack()
    policy.learn(finished(rewards))
    asked = request(candidates(wanted), wanted, group_size)
    return policy.choose(asked, np.random.default_rng(0)).size.tolist()


def test_harder_prompts_get_more_samples_and_the_budget_is_spent() -> None:
    n = sizes([[1.0] * k + [0.0] * (16 - k) for k in (1, 2, 4, 8, 12, 15)], wanted=6, group_size=16)
    assert sum(n) == 6 * 16
    assert n[0] > n[1] > n[2] > n[3]  # 1, 2, 4 and 8 of 16 passed
    assert n[1] > n[5]  # at the same distance from a half, the harder one


def test_solved_and_unsolved_prompts_pay_for_the_others() -> None:
    n = sizes([[1.0] * 8, [0.0] * 8, [0.0] * 7 + [1.0], [1.0] * 8], wanted=4)
    # of the 24 beyond 2 each, 17 show both outcomes of the third with 0.9; the unsolved gets 7
    assert n == [2, 2 + 7, 2 + 17, 2]


def test_prompts_never_seen_get_the_trainers_group_size() -> None:
    assert sizes([], wanted=5) == [8] * 5


@pytest.mark.parametrize("group_size", [1, 2, 8, 200])
@pytest.mark.parametrize("kind", ["solved", "unsolved", "open", "all"])
def test_the_budget_is_spent_whatever_the_prompts_are(kind: str, group_size: int) -> None:
    each = {"solved": [1.0] * 4, "unsolved": [0.0] * 4, "open": [0.0, 1.0]}
    rewards = [each[kind]] * 6 if kind != "all" else [*each.values(), *each.values()]
    n = sizes(rewards, wanted=8, group_size=group_size)
    assert sum(n) == 8 * group_size
    assert min(n) >= min(2, group_size)
    assert max(n) <= max(128, group_size)
