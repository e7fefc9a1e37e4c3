"""GRESO: the longer a prompt has taught nothing, the seldomer it is met."""

import numpy as np
import pytest
from support.prompt_world import PromptWorld, candidates, finished, request

from steersman.policies.prompts.greso import Greso

EASY, HARD, MIXED = [1.0] * 8, [0.0] * 8, [1.0, 0.0] * 4


def probability(policy: Greso) -> np.ndarray:
    """Of keeping the first three prompts."""
    trace, easy = policy._memory.read(candidates(3).prompt_key, (0.0, 0.0))
    return policy.keep_probability(trace, easy)


@pytest.mark.parametrize("z", [0, 1, 2, 5, 7, 30])
def test_after_z_groups_that_taught_nothing_a_prompt_is_kept_with_p_to_the_z(z: int) -> None:
    policy = Greso(first_p_easy=0.5, first_p_hard=0.7)
    for _ in range(z):
        policy.learn(finished([EASY, HARD, MIXED]))
    expected = [max(0.5**z, 0.01), max(0.7**z, 0.01), 1.0]
    assert probability(policy) == pytest.approx(expected)
    # one group whose rewards differ clears the record
    policy.learn(finished([MIXED, MIXED, MIXED]))
    assert probability(policy).tolist() == [1.0, 1.0, 1.0]


def test_prompts_that_teach_nothing_are_rolled_out_towards_the_target_share() -> None:
    """More than half of uniformly drawn groups teach nothing; the target is a quarter."""
    world = PromptWorld(seed=4, prompts=300, spread=5.0, drift=0.02)
    steps = world.run(Greso(), steps=60, wanted=24)
    useless = [1.0 - step.informative / step.asked for step in steps]
    first, last = np.mean(useless[:3]), np.mean(useless[-15:])
    assert first > 0.5
    assert last == pytest.approx(0.25, abs=0.05)


def test_keep_probabilities_move_by_a_hundredth_per_step_against_the_excess() -> None:
    policy, rng = Greso(), np.random.default_rng(0)
    for step, groups in enumerate(([EASY] * 4 + [MIXED] * 16, [HARD] * 4 + [MIXED] * 16, [MIXED])):
        policy.choose(request(candidates(40), wanted=20, step=step), rng)
        policy.learn(finished(groups))
        # asked again within a step nothing moves
        policy.choose(request(candidates(40), wanted=20, step=step, refill=1), rng)
    assert policy.state_dict()["p"] == pytest.approx([0.5, 0.5 + 0.01 - 0.01])
    policy.choose(request(candidates(40), wanted=20, step=9), rng)
    # 20 % easy is more than 1/3 of 25 %, 20 % hard more than 2/3 of it; else up
    assert policy.state_dict()["p"] == pytest.approx([0.5 - 0.01 + 0.01 + 0.01, 0.51])


def test_a_refill_is_sized_by_what_lacks_and_by_the_share_that_was_useless() -> None:
    policy, rng = Greso(), np.random.default_rng(0)
    offered = candidates(1000)
    assert len(policy.choose(request(offered, wanted=256), rng)) == 384
    policy.learn(finished([MIXED] * 150 + [HARD] * 50))
    assert len(policy.choose(request(offered, wanted=120, refill=1), rng)) == 200
    assert len(policy.choose(request(offered, wanted=5, refill=2), rng)) == 64
    assert len(policy.choose(request(offered, wanted=256, step=1), rng)) == 384


def test_only_groups_that_teach_something_fill_the_batch() -> None:
    policy, rng = Greso(), np.random.default_rng(0)
    policy.choose(request(candidates(40), wanted=2), rng)
    selection = policy.select(finished([EASY, MIXED, HARD, MIXED, MIXED]), rng)
    assert selection.accepted.tolist() == [False, True, False, True, False]
