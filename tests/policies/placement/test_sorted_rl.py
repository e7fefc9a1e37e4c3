from dataclasses import replace

import numpy as np
import pytest
from support.batches import (
    DEFAULT,
    GROUPS,
    SEEDS,
    SIZE,
    STEPS,
    answers,
    busy_share,
    discarded,
    mean_tokens,
    run,
    seconds,
    tokens,
)
from support.small_replay import PROFILE

from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.errors import InvalidInputError
from steersman.policies.placement.sorted_rl import SortedRL

PLAN = FleetPlan(replace(PROFILE, max_num_seqs=16), 2)
SLOTS = 32
ON_POLICY = "placement.options.mode=on_policy"


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_idle_less_and_the_same_answers_come_sooner(seed: int) -> None:
    base, ours = (run(name, seed, steps=8, plan=PLAN) for name in (DEFAULT, "sorted_rl"))
    assert (answers(ours), tokens(ours)) == (answers(base), tokens(base))
    assert seconds(ours) < 0.75 * seconds(base)
    assert 1 - busy_share(ours, SLOTS) < 0.85 * (1 - busy_share(base, SLOTS))


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_mode_that_is_called_on_policy_throws_tokens_away(seed: int) -> None:
    assert discarded(run("sorted_rl", seed)) == 0
    thrown = run("sorted_rl", seed, ON_POLICY)
    assert answers(thrown) == STEPS * GROUPS * SIZE
    assert discarded(thrown) > 0.2 * tokens(thrown)


def test_drawing_anew_what_was_cut_makes_answers_shorter() -> None:
    kept = [tokens(run("sorted_rl", seed)) for seed in SEEDS]
    anew = [tokens(run("sorted_rl", seed, ON_POLICY)) for seed in SEEDS]
    assert max(np.array(anew) / np.array(kept)) < 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_a_load_is_used_up_before_the_next_one_is_asked_for(seed: int) -> None:
    asked = [step.asked for step in run("sorted_rl", seed, steps=8).steps]
    assert asked == [4 * GROUPS * SIZE, 0, 0, 0, 4 * GROUPS * SIZE, 0, 0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_batches_of_a_load_are_sorted_by_length(seed: int) -> None:
    mean = mean_tokens(run("sorted_rl", seed, steps=8))
    for load in (mean[:4], mean[4:]):
        assert load == sorted(load)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="valid: partial, on_policy"):
        SortedRL(mode="off")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="oversubscription is 0"):
        SortedRL(oversubscription=0.0)
    with pytest.raises(InvalidInputError, match="backlog is -1"):
        SortedRL(backlog=-1)
