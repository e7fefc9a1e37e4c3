import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_world import (
    COPYING,
    DRAFT_TOKEN_S,
    FADING,
    FIXED_S,
    PER_SEQUENCE_S,
    World,
)

from steersman.estimators.speculation import (
    Verifying,
    best_draft_tokens,
    break_even_acceptance,
    break_even_batch,
    expected_tokens,
    speed_up,
)

acceptances = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).map(lambda a: np.array([a]))
batches = st.integers(1, 2000)
seconds = st.floats(1e-6, 0.1)


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


def test_expected_tokens_of_geometric_acceptance_are_the_known_ones() -> None:
    assert expected_tokens(np.full((1, 5), 0.8))[0] == pytest.approx(
        [1.0, 1.8, 2.44, 2.952, 3.3616, 3.68928]
    )


def test_a_copy_like_draft_is_judged_by_position_where_the_geometric_formula_fails() -> None:
    """The formula is given the truth in sum: every accepted and rejected token counted alike."""
    worst = {}
    for name, shape in (("copying", COPYING), ("fading", FADING)):
        truth = World(shape, seed=0).acceptance()[:1]
        tries = np.concatenate(([1.0], np.cumprod(truth[0])[:-1]))
        geometric = np.full_like(truth, (tries * truth[0]).sum() / tries.sum())
        shares = []
        for batch in range(1, 65):
            costs = one(batch), one(FIXED_S), one(PER_SEQUENCE_S), DRAFT_TOKEN_S
            speed = speed_up(truth, *costs)[0]
            by_position = best_draft_tokens(truth, *costs, 8)[0][0]
            by_formula = best_draft_tokens(geometric, *costs, 8)[0][0]
            assert speed[by_position] == pytest.approx(speed.max())
            shares.append(speed[by_formula] / speed.max())
        worst[name] = min(shares)
    assert worst["copying"] < 0.96
    assert worst["fading"] < 0.98


def test_the_largest_draft_can_be_limited_by_replica() -> None:
    acceptance = np.full((3, 8), 0.95)
    costs = np.ones(3), np.full(3, 0.01), np.full(3, 1e-5), 0.0
    best, speed = best_draft_tokens(acceptance, *costs, np.array([0, 2, 8]))
    assert best.tolist() == [0, 2, 8]
    assert speed[0] == 1.0
    assert speed[1] < speed[2]


def test_what_verifying_costs_is_paid_once_for_any_draft_and_for_each_token() -> None:
    acceptance, batch = np.full((1, 4), 0.7), one(3)
    plain_s, v0, v1 = 0.012 + 3 * 0.0002, 0.004, 0.0005
    costs = one(0.012), one(0.0002), 0.0001
    speed = speed_up(acceptance, batch, *costs, Verifying(one(v0), one(v1)))[0]
    for k in range(5):
        takes_s = plain_s + (v0 if k else 0.0) + v1 * k * 3 + 0.0001 * k
        expected = expected_tokens(acceptance)[0, k] * plain_s / takes_s
        assert speed[k] == pytest.approx(expected)
    as_sequences = Verifying(one(0.0), one(0.0002))
    assert speed_up(acceptance, batch, *costs, as_sequences) == pytest.approx(
        speed_up(acceptance, batch, *costs)
    )
    dear = Verifying(one(1.0), one(v1))
    assert best_draft_tokens(acceptance, batch, *costs, 4, dear)[0].tolist() == [0]


def test_without_positions_nothing_is_drafted() -> None:
    best, speed = best_draft_tokens(np.zeros((2, 0)), *[np.ones(2)] * 3, 0.0, 8)
    assert best.tolist() == [0, 0]
    assert speed.tolist() == [1.0, 1.0]
    assert break_even_batch(np.zeros((2, 0)), np.ones(2), np.ones(2), 0.0).tolist() == [0.0, 0.0]


@settings(max_examples=200, deadline=None)
@given(acceptances, batches, seconds, seconds, st.floats(0.0, 0.1))
def test_the_answer_is_within_bounds(
    acceptance: np.ndarray, batch: int, fixed_s: float, sequence_s: float, draft_s: float
) -> None:
    costs = one(batch), one(fixed_s), one(sequence_s), draft_s
    best, speed = best_draft_tokens(acceptance, *costs, 8)
    k = acceptance.shape[1]
    assert 0 <= best[0] <= k
    assert 1.0 - 1e-8 <= speed[0] <= k + 1
    assert speed[0] >= speed_up(acceptance, *costs).max() * (1 - 1e-8)


@settings(max_examples=200, deadline=None)
@given(acceptances, batches, batches, seconds, seconds, st.floats(0.0, 0.1))
def test_a_larger_batch_never_makes_a_longer_draft_best(
    acceptance: np.ndarray, a: int, b: int, fixed_s: float, sequence_s: float, draft_s: float
) -> None:
    small, large = (
        best_draft_tokens(acceptance, one(x), one(fixed_s), one(sequence_s), draft_s, 8)
        for x in (min(a, b), max(a, b))
    )
    at_large = speed_up(acceptance, one(max(a, b)), one(fixed_s), one(sequence_s), draft_s)[0]
    tie = at_large[small[0][0]] >= at_large[large[0][0]] * (1 - 1e-8)
    assert large[0][0] <= small[0][0] or tie


@settings(max_examples=200, deadline=None)
@given(st.floats(0.0, 1.0), batches, seconds, seconds, st.floats(0.0, 0.1))
def test_drafting_starts_exactly_at_the_break_even_acceptance(
    acceptance: float, batch: int, fixed_s: float, sequence_s: float, draft_s: float
) -> None:
    costs = one(batch), one(fixed_s), one(sequence_s), draft_s
    even = break_even_acceptance(*costs)[0]
    below = np.full((1, 6), min(acceptance, max(even - 1e-6, 0.0)))
    assert best_draft_tokens(below, *costs, 6)[0][0] == 0
    if even < 0.999:
        above = np.full((1, 6), even + (1 - even) * max(acceptance, 1e-3))
        assert best_draft_tokens(above, *costs, 6)[0][0] >= 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=8).map(lambda a: np.array([a])),
    st.floats(1e-3, 0.1),
    st.floats(1e-6, 1e-2),
    st.floats(0.0, 0.1),
)
def test_drafting_stops_exactly_at_the_break_even_batch(
    acceptance: np.ndarray, fixed_s: float, sequence_s: float, draft_s: float
) -> None:
    below = break_even_batch(acceptance, one(fixed_s), one(sequence_s), draft_s)[0]
    for share, pays in ((0.999, True), (1.001, False)):
        costs = one(share * below), one(fixed_s), one(sequence_s), draft_s
        if share * below >= 1.0:
            assert bool(best_draft_tokens(acceptance, *costs, 8)[0][0]) is pays
