import numpy as np
import pytest
from support.batches import (
    DEFAULT,
    GROUPS,
    SEEDS,
    SIZE,
    answers,
    discarded,
    mean_tokens,
    run,
    seconds,
    tokens,
)

from steersman.controller.replay.run import Result
from steersman.estimators.errors import InvalidInputError
from steersman.policies.placement.roll_packer import RollPacker

KEEP = "placement.options.keep_partials=true"


def long_round(result: Result) -> int:
    """The first step that asks for no new samples."""
    return [step.asked for step in result.steps].index(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_four_or_five_short_rounds_are_followed_by_a_long_one(seed: int) -> None:
    result = run("roll_packer", seed, KEEP)
    asked = [step.asked for step in result.steps]
    assert long_round(result) in (4, 5)  # five where a round completes more than its batch
    assert asked[0] == GROUPS * SIZE * 5 / 4


@pytest.mark.parametrize("seed", SEEDS)
def test_short_rounds_keep_shorter_answers_than_they_ask_for(seed: int) -> None:
    result = run("roll_packer", seed, KEEP)
    mean, last = mean_tokens(result), long_round(result)
    asked = np.mean([step.mean_length_asked for step in result.steps[:last]])
    assert np.mean(mean[:last]) < 0.9 * asked
    assert mean[last] > 2 * asked


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_kept_for_the_long_round_takes_less_time_for_the_same_answers(seed: int) -> None:
    base, ours = run(DEFAULT, seed), run("roll_packer", seed, KEEP)
    assert (answers(ours), tokens(ours)) == (answers(base), tokens(base))
    assert discarded(ours) == 0
    assert seconds(ours) < 0.9 * seconds(base)


@pytest.mark.parametrize("seed", SEEDS)
def test_as_published_tokens_are_wasted_and_answers_become_shorter(seed: int) -> None:
    base, ours = run(DEFAULT, seed), run("roll_packer", seed)
    assert answers(ours) == answers(base)
    assert discarded(ours) > 0
    assert tokens(ours) < 0.97 * tokens(base)


def test_no_slot_is_restarted_twice() -> None:
    once, often = run("roll_packer", 0), run("roll_packer", 0, "guard.max_restarts=9")
    assert sum(s.restarted for s in often.steps) == sum(s.restarted for s in once.steps) > 0


def test_fewer_than_a_batch_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"oversampling is 0\.9"):
        RollPacker(oversampling=0.9)
