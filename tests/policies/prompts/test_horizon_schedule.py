"""The horizon grows up to threefold, or stays a tenth of the trainer's."""

import numpy as np
import pytest
from support.prompt_games import request

from steersman.policies.prompts.horizon_schedule import HorizonSchedule

RNG = np.random.default_rng(0)


def caps(policy: HorizonSchedule, steps: range, max_new_tokens: int = 3000) -> list[int]:
    asked = [request(step=step, max_new_tokens=max_new_tokens) for step in steps]
    return [int(policy.choose(each, RNG).max_new_tokens[0]) for each in asked]


def test_the_cap_grows_steadily_to_the_trainers_own_at_most_threefold() -> None:
    grown = caps(HorizonSchedule(grow_steps=50), range(80))
    assert grown[0] == 1000
    assert grown == sorted(grown)
    assert grown[25] == 2000
    assert grown[50:] == [3000] * 30
    assert max(grown) / min(grown) <= 3.0


def test_truncating_takes_the_same_share_in_every_step() -> None:
    assert caps(HorizonSchedule(mode="truncate"), range(5)) == [300] * 5


def test_a_cap_is_never_below_one_token() -> None:
    assert caps(HorizonSchedule(mode="truncate"), range(1), max_new_tokens=2) == [1]


def test_all_prompts_of_a_step_have_the_same_cap_and_the_trainers_group_size() -> None:
    choice = HorizonSchedule().choose(request(groups_wanted=5, group_size=8), RNG)
    assert choice.max_new_tokens.tolist() == [333] * 5
    assert choice.size.tolist() == [8] * 5


@pytest.mark.parametrize("option", ["share", "start_share"])
def test_options_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 1.5"):
        HorizonSchedule(**{option: 1.5})
