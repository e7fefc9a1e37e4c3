import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_worlds import Placed, model_of, random_placed, rows_of

from steersman.policies.adaptive._ends import add, end_s, end_with_s, loads

seeds = st.integers(0, 2**32 - 1)


def test_a_batch_run_to_its_end_takes_the_longest_at_m_and_every_token_at_c() -> None:
    """100 and 40 tokens with M = 10 ms, c = 1 ms: 1 s + 0.14 s."""
    rows = rows_of([100, 40])
    ends = end_s(model_of(2), loads(rows, np.array([0, 0]), 2, 2))
    assert ends.tolist() == [[pytest.approx(1.14), 0.0]]


def test_context_costs_at_the_size_it_has_while_it_is_read() -> None:
    """10 tokens from a context of 5, that grows by 2 with each: 5 * 10 + 2 * 10^2 / 2 = 150."""
    rows = rows_of([10], context=5, growth=2.0)
    model = model_of(1, fixed_s=0.0, sequence_s=0.0, token_s=1.0)
    assert end_s(model, loads(rows, np.array([0]), 1, 1))[0, 0] == pytest.approx(150.0)


def test_full_slots_and_full_memory_make_more_iterations() -> None:
    rows = rows_of([100, 100, 100])
    everyone = loads(rows, np.zeros(3, dtype=np.int64), 1, 3)
    plain = {"fixed_s": 1.0, "sequence_s": 0.0}
    assert end_s(model_of(1, **plain), everyone)[0, 0] == pytest.approx(100)
    assert end_s(model_of(1, slots=2, **plain), everyone)[0, 0] == pytest.approx(150)
    assert end_s(model_of(1, capacity=60, **plain), everyone)[0, 0] == pytest.approx(250)


def test_who_waits_for_tools_takes_more_iterations_and_no_more_work() -> None:
    rows = rows_of([100], stretch=3.0)
    assert end_s(model_of(1), loads(rows, np.array([0]), 1, 1))[0, 0] == pytest.approx(3.1)


@given(seed=seeds)
@settings(deadline=None, max_examples=100)
def test_the_ends_of_a_load_are_those_written_down_plainly(seed: int) -> None:
    placed, _ = random_placed(np.random.default_rng(seed))
    np.testing.assert_allclose(end_s(placed.model, placed.load()), placed.ends())


@given(seed=seeds)
@settings(deadline=None, max_examples=100)
def test_adding_one_after_another_is_the_load_from_scratch(seed: int) -> None:
    """Each prompt is paid for once on a replica, however many siblings come."""
    rng = np.random.default_rng(seed)
    placed, rest = random_placed(rng)
    load = placed.load()
    for i in rest.tolist():
        r = int(rng.choice(np.flatnonzero(placed.model.open)))
        foretold = end_with_s(placed.model, placed.rows, load, i, r)
        add(placed.model, placed.rows, load, i, r)
        placed.added.append((i, r))
        assert end_s(placed.model, load)[:, r].mean() == pytest.approx(foretold)
    np.testing.assert_allclose(end_s(placed.model, load), placed.ends())
    where = dict([*placed.began.items(), *placed.added])
    everyone = loads(
        placed.rows, np.array([where[i] for i in range(len(where))]), len(load.number), 5
    )
    np.testing.assert_allclose(load.total, everyone.total)
    np.testing.assert_allclose(load.area, everyone.area)
    assert load.longest.tolist() == everyone.longest.tolist()
    assert load.number.tolist() == everyone.number.tolist()
    assert load.has.tolist() == everyone.has.tolist()


@given(seed=seeds)
@settings(deadline=None, max_examples=50)
def test_the_second_longest_is_told_for_whoever_leaves(seed: int) -> None:
    placed, _ = random_placed(np.random.default_rng(seed))
    load = placed.load()
    for r in range(len(load.number)):
        here = [i for i, where in placed.began.items() if where == r]
        for s in range(len(load.second)):
            chains = sorted([0.0, 0.0, *placed.rows.chain[s, here]])
            assert (load.longest[s, r], load.second[s, r]) == (chains[-1], chains[-2])


def test_a_dead_replica_has_no_end() -> None:
    model = model_of(2, alive=[True, False])
    assert end_s(model, loads(rows_of([9, 9]), np.array([0, 1]), 2, 2))[0, 1] == 0.0


def test_a_copy_does_not_change_with_the_original() -> None:
    placed = Placed(model_of(2), rows_of([5, 7]), {0: 0})
    load = placed.load(2)
    before = load.copy()
    add(placed.model, placed.rows, load, 1, 0)
    assert before.total.tolist() == [[5, 0]]
    assert before.number.tolist() == [1, 0]
    assert not before.has[1, 0]
