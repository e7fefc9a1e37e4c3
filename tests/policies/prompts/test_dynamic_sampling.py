"""Dynamic sampling fills a batch with informative groups, at the price the formula says."""

import numpy as np
import pytest
from support.prompt_games import fill, finished, request

from steersman.estimators.errors import InvalidInputError
from steersman.policies.prompts.dynamic_sampling import DynamicSampling

MIXED, ALIKE = [0.0, 1.0, 1.0, 0.0], [1.0] * 4
RNG = np.random.default_rng(0)


def test_samples_per_group_are_those_of_a_group_over_the_share_that_is_informative() -> None:
    """1 / (1 - E[P_deg]), for refills of what lacks."""
    rates = np.random.default_rng(1).beta(0.5, 0.5, 20_000)
    informative = 1.0 - np.mean(rates**8 + (1.0 - rates) ** 8)
    batch = fill(DynamicSampling(whole_rounds=False, max_rounds=0), rates, groups_wanted=4000)
    assert batch.informative == batch.accepted == 4000
    assert batch.samples / (4000 * 8) == pytest.approx(1.0 / informative, rel=0.03)


def test_whole_rounds_write_more_than_refills_of_what_lacks() -> None:
    rates = np.random.default_rng(1).beta(0.5, 0.5, 2000)
    whole = fill(DynamicSampling(), rates, groups_wanted=300)
    lacking = fill(DynamicSampling(whole_rounds=False), rates, groups_wanted=300)
    assert whole.accepted == lacking.accepted == 300
    assert whole.samples > lacking.samples
    assert whole.rounds < lacking.rounds


def test_oversampling_threefold_fills_the_batch_in_one_round() -> None:
    rates = np.random.default_rng(1).beta(0.5, 0.5, 2000)
    assert fill(DynamicSampling(oversampling=3.0), rates, groups_wanted=300).rounds == 1


def test_groups_whose_rewards_agree_are_dropped_with_all_their_samples() -> None:
    policy, groups = DynamicSampling(), finished([ALIKE, MIXED, [0.0] * 4])
    policy.choose(request(groups_wanted=3), RNG)
    selection = policy.select(groups, RNG)
    assert selection.accepted.tolist() == [False, True, False]
    assert selection.train.tolist() == [False] * 4 + [True] * 4 + [False] * 4


def test_groups_of_one_sample_are_kept() -> None:
    assert DynamicSampling().select(finished([[1.0], [0.0]]), RNG).accepted.all()


@pytest.mark.parametrize(("keep_surplus", "accepted"), [(False, 2), (True, 3)])
def test_surplus_is_dropped_unless_it_is_kept(keep_surplus: bool, accepted: int) -> None:
    policy = DynamicSampling(keep_surplus=keep_surplus)
    policy.choose(request(groups_wanted=2), RNG)
    assert policy.select(finished([MIXED] * 3), RNG).accepted.sum() == accepted


def test_when_the_rounds_are_used_up_nothing_more_is_asked_and_the_reason_says_so() -> None:
    policy = DynamicSampling(max_rounds=3)
    assert len(policy.choose(request(groups_wanted=2, refill=2), RNG))
    choice = policy.choose(request(groups_wanted=2, refill=3), RNG)
    assert len(choice) == 0
    assert choice.reason == "the batch lacks 2 groups after 3 rounds and stays short"


def test_the_last_round_fills_the_batch_with_degenerate_groups_if_told_to() -> None:
    hopeless = np.zeros(200)
    assert fill(DynamicSampling(max_rounds=3), hopeless, groups_wanted=10).accepted == 0
    filled = fill(DynamicSampling(max_rounds=3, when_exceeded="fill"), hopeless, groups_wanted=10)
    assert (filled.accepted, filled.informative, filled.rounds) == (10, 0, 3)


def test_a_batch_that_is_being_filled_survives_a_restart() -> None:
    policy, other = DynamicSampling(), DynamicSampling()
    policy.choose(request(groups_wanted=2), RNG)
    other.load_state_dict(policy.state_dict())
    groups = finished([MIXED] * 3)
    assert other.select(groups, RNG).accepted.tolist() == [True, True, False]
    assert len(other.choose(request(groups_wanted=1, refill=1), RNG)) == 2  # a whole round


@pytest.mark.parametrize("options", [{"oversampling": 0.5}, {"max_rounds": -1}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match="valid"):
        DynamicSampling(**options)
