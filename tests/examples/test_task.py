"""The verifier is exact, the demonstrator earns what it should, and evaluation is held out."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.examples.signs.task import (
    CLAIM_ID,
    EOS_ID,
    MISS_ID,
    VOCABULARY,
    VOCABULARY_SIZE,
    Demonstrator,
    Problem,
    deal_prompts,
    decode,
    demonstrate,
    draw_problem,
    make_evaluation_pool,
    make_pool,
    prompt_tokens,
    reward,
)

PERFECT = Demonstrator(slip_rate=0.0, false_claim_rate=0.0, max_attempts=2000)
PROBLEM = Problem((7, 5), -12, solvable=True)


def encode(words: str) -> list[int]:
    return [VOCABULARY.index(word) for word in words.split()]


def test_a_prompt_and_a_response_read_as_the_module_says() -> None:
    assert decode(prompt_tokens(PROBLEM)) == "<bos> 7 5 t-12 :"
    response = encode("=-12 +7 =-19 +5 =-24 x =-12 -7 =-5 -5 =0 ok <eos>")
    assert reward(PROBLEM, response, finished=True) == 1.0


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("=-12 +7 =-19 +5 =0 ok <eos>", "the sum is 12, whatever the remainder says"),
        ("=-12 -7 =-5 -5 =0 x <eos>", "a hit that is not claimed"),
        ("=-12 -7 =-5 -5 =0 ok x ok <eos>", "the last attempt is empty"),
        ("=-12 -6 =-6 -6 =0 ok <eos>", "other numbers than the prompt's"),
        ("=-12 -5 =-7 -7 =0 ok <eos>", "the prompt's numbers in another order"),
        ("=-12 -7 =-5 ok <eos>", "a number is missing"),
        ("=-12 -7 =-5 -5 =0 -7 =7 +7 =0 ok <eos>", "numbers too many"),
        ("=-12 -7 -7 -5 -5 ok <eos>", "no remainders between"),
        ("=-12 -7 =-5 -5 =0 ok ok <eos>", "claimed twice"),
        ("ok <eos>", "no attempt at all"),
        ("<eos>", "nothing said"),
        ("", "nothing generated"),
    ],
)
def test_a_claim_that_is_not_exactly_right_earns_nothing(response: str, why: str) -> None:
    assert reward(PROBLEM, encode(response), finished=True) == 0.0, why


def test_only_the_last_attempt_counts() -> None:
    hit, miss = "=-12 -7 =-5 -5 =0", "=-12 +7 =-19 +5 =-24"
    assert reward(PROBLEM, encode(f"{miss} x {hit} ok <eos>"), finished=True) == 1.0
    assert reward(PROBLEM, encode(f"{hit} x {miss} ok <eos>"), finished=True) == 0.0


def test_a_truncated_response_earns_nothing_even_if_it_ends_in_a_claim() -> None:
    claimed = encode("=-12 -7 =-5 -5 =0 ok")
    assert reward(PROBLEM, claimed, finished=False) == 0.0
    assert reward(PROBLEM, claimed, finished=True) == 1.0  # an engine that strips its stop token


@given(seed=st.integers(0, 2**32 - 1))
def test_a_demonstration_without_slips_and_false_claims_earns_the_reward(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = draw_problem(rng, solvable=True)
    assert reward(problem, demonstrate(problem, rng, PERFECT), finished=True) == 1.0


@given(seed=st.integers(0, 2**32 - 1))
def test_no_demonstration_of_an_unsolvable_problem_earns_the_reward(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = draw_problem(rng, solvable=False)
    response = demonstrate(problem, rng)
    assert reward(problem, response, finished=response[-1] == EOS_ID) == 0.0


@given(seed=st.integers(0, 2**32 - 1))
def test_changing_the_target_of_a_rewarded_response_loses_the_reward(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = draw_problem(rng, solvable=True)
    response = demonstrate(problem, rng, PERFECT)
    for target in {-15, 0, 15} - {problem.target}:
        assert reward(Problem(problem.numbers, target, True), response, finished=True) == 0.0


def test_a_false_claim_follows_a_miss_at_the_demonstrators_rate() -> None:
    rng = np.random.default_rng(0)
    no_slips = Demonstrator(slip_rate=0.0)
    problem = draw_problem(rng, solvable=False)
    ends = [demonstrate(problem, rng, no_slips) for _ in range(400)]
    attempts = sum(response.count(MISS_ID) + response.count(CLAIM_ID) for response in ends)
    assert len(ends) / attempts == pytest.approx(0.15, abs=0.02)


def test_training_and_evaluation_pools_are_distinct_and_disjoint() -> None:
    training = make_pool(500, unsolvable_share=0.2, seed=1)
    evaluation = make_evaluation_pool(300, seed=2)
    assert len(set(training)) == 500
    assert len(set(evaluation)) == 300
    assert not set(training) & set(evaluation)
    assert sum(not problem.solvable for problem in training) == 100
    assert all(problem.solvable for problem in evaluation)
    assert training == make_pool(500, unsolvable_share=0.2, seed=1)


def test_every_step_is_dealt_the_pools_mix_of_difficulties() -> None:
    pool = make_pool(200, unsolvable_share=0.2, seed=0)
    dealt = deal_prompts(pool, steps=30, prompts_per_step=16, seed=0)
    assert [len(set(hand)) for hand in dealt] == [16] * 30
    assert {sum(not pool[i].solvable for i in hand) for hand in dealt} <= {2, 3, 4}
    assert len({i for hand in dealt[:12] for i in hand}) == 192  # an epoch repeats no prompt
    assert dealt == deal_prompts(pool, steps=30, prompts_per_step=16, seed=0)
    with pytest.raises(ValueError, match="cannot deal 201 prompts a step from 200"):
        deal_prompts(pool, steps=1, prompts_per_step=201, seed=0)


def test_every_word_has_one_id() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == VOCABULARY_SIZE


def test_the_task_alone_does_not_import_torch() -> None:
    code = "import sys, steersman.examples.signs.task; sys.exit('torch' in sys.modules)"
    search = "import sys; sys.path[:] = " + repr(sys.path) + "; "
    assert subprocess.run([sys.executable, "-c", search + code], check=False).returncode == 0
