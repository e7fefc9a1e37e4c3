import numpy as np
import pytest

from steersman.policies.adaptive import steps
from steersman.policies.adaptive.arms import (
    ARMS,
    DEFAULT,
    DOUBT,
    FULL,
    LEVEL_DOUBT,
    PROMISED,
    QUIET_STEPS,
)
from steersman.policies.adaptive.bandit import StackBandit


def bandit() -> StackBandit:
    return StackBandit(
        tuple(ARMS),
        features=steps.FEATURES,
        prior_log_cost=PROMISED,
        prior_deviation=DOUBT,
        opening_steps=0,
        level_deviation=LEVEL_DOUBT,
        quiet_steps=QUIET_STEPS,
    )


def test_the_arms_are_all_that_two_mechanisms_can_be() -> None:
    assert len({(arm.admit, arm.move) for arm in ARMS.values()}) == len(ARMS) == 4
    assert not ARMS[DEFAULT].admit
    assert not ARMS[DEFAULT].move
    assert set(PROMISED) == set(DOUBT) == set(ARMS) - {DEFAULT}


def test_the_whole_planner_is_played_until_something_is_known() -> None:
    learner, context = bandit(), np.zeros(steps.FEATURES)
    for seed in range(QUIET_STEPS):
        assert learner.choose(context, np.random.default_rng(seed)).arm == FULL
        learner.learn(FULL, context, 0.05)


@pytest.mark.parametrize("seed", range(3))
def test_a_planner_that_makes_steps_longer_is_given_up(seed: int) -> None:
    """The default costs nothing, and all else 30 % more."""
    learner, context, rng = bandit(), np.zeros(steps.FEATURES), np.random.default_rng(seed)
    chosen = []
    for _ in range(120):
        arm = learner.choose(context, rng).arm
        learner.learn(arm, context, rng.normal(0.0 if arm == DEFAULT else 0.3, 0.02))
        chosen.append(arm)
    assert chosen[-40:].count(DEFAULT) > 30
