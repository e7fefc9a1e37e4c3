"""The exact collapse with drafts, against batches that are played out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.estimators.draft_ends import Batches, Costs, end_as_s, ends_s

M, C, V0, V1 = 0.01, 0.002, 0.003, 0.0007


def costs(replicas: int, slots: float = 1000.0) -> Costs:
    scale = 1.0 + np.arange(replicas)
    return Costs(M * scale, C * scale, V0 * scale, V1 * scale, np.full(replicas, slots))


def played_s(left: np.ndarray, tokens: np.ndarray, drafted: np.ndarray, scale: float) -> float:
    """Seconds until all have written what they have left, in iterations without end."""
    left, total, n = left.copy(), 0.0, 0
    while (left > 1e-9).any():
        on = left > 1e-9
        # iterations until the next one ends, which may be a fraction
        n = float((left[on] / tokens[on]).min())
        verified = (drafted * on).sum()
        total += n * scale * (M + C * on.sum() + V0 * (verified > 0) + V1 * verified)
        left = np.where(on, left - n * tokens, 0.0)
    return total


lengths = st.lists(st.lists(st.integers(1, 5000), min_size=0, max_size=7), min_size=1, max_size=4)


@given(lengths, st.lists(st.floats(1.0, 5.0), min_size=2, max_size=2))
@settings(max_examples=100, deadline=None)
def test_every_m_and_k_end_when_the_batch_played_out_does(
    own: list[list[int]], tokens: list[float]
) -> None:
    at = np.repeat(np.arange(len(own)), [len(each) for each in own])
    left = np.array([x for each in own for x in each], dtype=np.float64)
    shuffled = np.random.default_rng(0).permutation(len(left))
    batches = Batches.of(at[shuffled], left[shuffled], len(own))
    choices, expected = np.array([0, 3, 8]), np.tile([1.0, *tokens], (len(own), 1))
    table = ends_s(batches, costs(len(own)), expected, choices, np.arange(len(left)))
    for row in range(len(left)):
        r, m = int(batches.replica[row]), int(batches.rank[row]) + 1
        mine = np.sort(own[r])[::-1].astype(np.float64)
        for q, k in enumerate(choices.tolist()):
            drafts = np.arange(len(mine)) < m
            each = np.where(drafts, expected[r, q], 1.0)
            asked = played_s(mine, each, k * drafts, 1.0 + r)
            assert table[row, q] == pytest.approx(asked)
            tokens_of = np.ones(len(left))
            drafted = np.zeros(len(left), dtype=np.int64)
            chosen = (batches.replica == r) & (batches.rank < m)
            tokens_of[chosen], drafted[chosen] = expected[r, q], k
            as_is = end_as_s(batches, costs(len(own)), tokens_of, drafted)
            assert as_is[r] == pytest.approx(asked)


def test_what_has_no_slot_waits_for_one() -> None:
    """Eight of 100 tokens on two slots run as four after each other."""
    batches = Batches.of(np.zeros(8, dtype=np.int64), np.full(8, 100.0), 1)
    one, two = np.ones((1, 1)), np.array([0])
    got = ends_s(batches, costs(1, slots=2.0), one, two, np.array([7]))
    assert got[0, 0] == pytest.approx(M * 400 + C * 800)
    drafts = ends_s(batches, costs(1, slots=2.0), 2.0 * one, np.array([4]), np.array([7]))
    assert drafts[0, 0] == pytest.approx((M + V0) * 200 + (C + 4 * V1) * 400)


def test_a_replica_without_trajectories_ends_at_once() -> None:
    batches = Batches.of(np.array([1, 1]), np.array([5.0, 9.0]), 3)
    ends = end_as_s(batches, costs(3), np.ones(2), np.zeros(2, dtype=np.int64))
    assert ends[[0, 2]].tolist() == [0.0, 0.0]
    assert batches.order.tolist() == [1, 0]
    assert batches.next.tolist() == [5.0, 0.0]
    none = Batches.of(np.zeros(0, dtype=np.int64), np.zeros(0), 2)
    assert none.largest(np.zeros(0)).tolist() == none.total(np.zeros(0)).tolist() == [0.0, 0.0]
