"""SPEED-RL completes only the groups whose first samples differ."""

import numpy as np
from support.prompt_games import fill, finished, request

from steersman.policies.prompts.dynamic_sampling import DynamicSampling
from steersman.policies.prompts.speed_rl import SpeedRL

RNG = np.random.default_rng(0)


def test_fewer_samples_than_dynamic_sampling_for_as_many_informative_groups() -> None:
    rates = np.random.default_rng(1).beta(0.2, 0.2, 20_000)
    screened = fill(SpeedRL(max_rounds=0), rates, groups_wanted=1000, group_size=16)
    refilled = DynamicSampling(whole_rounds=False, max_rounds=0)
    whole = fill(refilled, rates, groups_wanted=1000, group_size=16)
    assert screened.informative == whole.informative == 1000
    assert screened.samples < 0.8 * whole.samples


def test_only_prompts_that_pass_sometimes_get_the_rest_of_their_group() -> None:
    policy = SpeedRL(screen=4)
    assert policy.choose(request(group_size=16), RNG).size.tolist() == [4] * 8
    screened = finished([[1.0] * 4, [0, 1, 0, 0], [0.0] * 4])
    assert policy.extend(screened, RNG).tolist() == [0, 12, 0]
    complete = finished([[1.0] * 4, [0, 1] * 8, [0.0] * 4])
    assert policy.extend(complete, RNG).tolist() == [0, 0, 0]
    assert policy.select(complete, RNG).accepted.tolist() == [False, True, False]


def test_no_more_groups_are_completed_than_the_batch_lacks() -> None:
    policy = SpeedRL()
    policy.choose(request(groups_wanted=2, group_size=8), RNG)
    screened = finished([[0, 1, 0, 1]] * 4)
    assert policy.extend(screened, RNG).tolist() == [4, 4, 0, 0]
    unfinished = finished([[0, 1] * 4, [0, 1] * 4, [0, 1, 0, 1], [0, 1, 0, 1]])
    assert policy.select(unfinished, RNG).accepted.tolist() == [True, True, False, False]


def test_a_group_as_small_as_a_screening_needs_no_completion() -> None:
    rates = np.full(100, 0.5)
    batch = fill(SpeedRL(screen=8, oversampling=1.0), rates, groups_wanted=20, group_size=4)
    assert batch.accepted >= 20
    assert batch.samples % 4 == 0


def test_hopeless_prompts_do_not_keep_it_busy_for_ever() -> None:
    batch = fill(SpeedRL(max_rounds=5), np.zeros(1000), groups_wanted=10)
    assert (batch.rounds, batch.accepted) == (5, 0)
    assert batch.samples % 4 == 0


def test_where_few_groups_are_degenerate_it_saves_nothing() -> None:
    """4 / 0.6 + 4 against 8 / (7 / 9) samples, for pass rates drawn evenly from 0 to 1."""
    policy, rates = SpeedRL(max_rounds=0), np.random.default_rng(1).random(20_000)
    fill(policy, rates, groups_wanted=500)  # it learns how many pass the screening
    screened = fill(policy, rates, groups_wanted=1000)
    refilled = DynamicSampling(whole_rounds=False, max_rounds=0)
    whole = fill(refilled, rates, groups_wanted=1000)
    assert screened.samples > whole.samples


def test_it_screens_more_prompts_where_fewer_pass_and_remembers_that() -> None:
    policy, other = SpeedRL(), SpeedRL()
    before = len(policy.choose(request(groups_wanted=4, offered=99), RNG))
    policy.learn(finished([[0.0] * 4] * 9))
    after = len(policy.choose(request(groups_wanted=4, offered=99), RNG))
    assert (before, after) == (8, 12)
    other.load_state_dict(policy.state_dict())
    assert len(other.choose(request(groups_wanted=4, offered=99), RNG)) == 12
