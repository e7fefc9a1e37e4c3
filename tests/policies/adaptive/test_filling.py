from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_worlds import Placed, model_of, random_placed, rows_of

from steersman.policies.adaptive._ends import end_s
from steersman.policies.adaptive._filling import BISECTIONS, by_cuts, by_end, by_fewest
from steersman.policies.placement._fewest import fewest_first

seeds = st.integers(0, 2**32 - 1)


def mean_ends(placed: Placed) -> np.ndarray:
    """(r,) from scratch."""
    return np.asarray(placed.ends().mean(axis=0))


@given(seed=seeds)
@settings(deadline=None, max_examples=60)
def test_by_fewest_leaves_as_many_on_each_as_the_trainers_default_does(seed: int) -> None:
    placed, rest = random_placed(np.random.default_rng(seed))
    load = placed.load()
    before = load.number.copy()
    target = by_fewest(placed.model, placed.rows, load, rest)
    open_ = np.flatnonzero(placed.model.open)
    rank = np.argsort(placed.model.by_name)
    expected = fewest_first(before.copy(), open_, len(rest), lambda row, n: float(rank[row]))
    assert target.tolist() == expected
    assert load.number.tolist() == (before + np.bincount(target, minlength=len(before))).tolist()


@given(seed=seeds)
@settings(deadline=None, max_examples=60)
def test_by_end_takes_at_each_step_the_soonest_end_that_there_is_room_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    placed, rest = random_placed(rng)
    replicas, load = len(placed.model.fixed_s), placed.load()
    room = rng.integers(0, 6, replicas)
    memory = rng.uniform(-1000, 20_000, replicas)
    final = rng.uniform(0, 8000, len(placed.rows.group))
    left, bytes_left = room.copy(), memory.copy()
    target = by_end(placed.model, placed.rows, load, rest, room, memory, final)
    for i, to in zip(rest.tolist(), target.tolist(), strict=True):
        able = np.flatnonzero(placed.model.open & (left > 0) & (bytes_left > 0))
        if to < 0:
            assert not len(able)
            continue
        assert to in able
        ends = {}
        for r in able.tolist():
            placed.added.append((i, r))
            ends[r] = mean_ends(placed)[r]
            placed.added.pop()
        assert ends[to] == pytest.approx(min(ends.values()))
        placed.added.append((i, to))
        left[to] -= 1
        bytes_left[to] -= final[i]
    assert room.tolist() == left.tolist()
    np.testing.assert_allclose(memory, bytes_left)
    np.testing.assert_allclose(end_s(placed.model, load), placed.ends())


def cuts(placed: Placed, order: np.ndarray, target: np.ndarray) -> float:
    """The latest mean end under an assignment."""
    placed.added = list(zip(order.tolist(), target.tolist(), strict=True))
    ends = mean_ends(placed)
    return float(max((ends[r] for r in set(target.tolist())), default=0.0))


@given(seed=seeds)
@settings(deadline=None, max_examples=60)
def test_by_cuts_makes_contiguous_runs_that_respect_room(seed: int) -> None:
    rng = np.random.default_rng(seed)
    placed, order = random_placed(rng)
    rng.shuffle(order)
    replicas = rng.permutation(np.flatnonzero(placed.model.open))
    count = len(placed.model.fixed_s)
    room = rng.integers(0, 8, count)
    load = placed.load()
    target = by_cuts(placed.model, placed.rows, load, order, replicas, room)
    fits = int(room[replicas].sum())
    assert (target >= 0).sum() == min(fits, len(order))
    assert (target[: min(fits, len(order))] >= 0).all()
    given_ = target[target >= 0]
    place = {r: at for at, r in enumerate(replicas.tolist())}
    turns = [place[r] for r in given_.tolist()]
    assert turns == sorted(turns)
    assert (np.bincount(given_, minlength=count) <= room).all()
    placed.added = list(zip(order[target >= 0].tolist(), given_.tolist(), strict=True))
    np.testing.assert_allclose(end_s(placed.model, load), placed.ends())


@given(seed=seeds)
@settings(deadline=None, max_examples=30)
def test_no_other_cut_of_the_same_order_ends_sooner(seed: int) -> None:
    """All of them are tried; the bisection may be off by its last interval."""
    rng = np.random.default_rng(seed)
    placed, order = random_placed(rng, all_open=True)
    order = order[:7]
    replicas = np.flatnonzero(placed.model.open)[:3]
    room = np.full(len(placed.model.fixed_s), len(order))
    target = by_cuts(placed.model, placed.rows, placed.load(), order, replicas, room)
    found = cuts(placed, order, target)
    best = min(
        cuts(placed, order, replicas[np.searchsorted(at, np.arange(len(order)), side="right")])
        for at in combinations_with_replacement(range(len(order) + 1), len(replicas) - 1)
    )
    assert found <= best * (1 + 2.0**-BISECTIONS) + 2.0**-BISECTIONS


def test_by_cuts_isolates_the_long_ones() -> None:
    """M = 10 ms, c = 1 ms.  Two of 2000 tokens and eight of 500: the long ones take 24 s alone."""
    rows = rows_of([2000, 2000, *[500] * 8])
    placed = Placed(model_of(2), rows)
    order, room = np.arange(10), np.full(2, 10)
    target = by_cuts(placed.model, rows, placed.load(10), order, np.arange(2), room)
    assert target.tolist() == [0, 0, *[1] * 8]


@pytest.mark.parametrize("fill", ["fewest", "end", "cuts"])
def test_neither_the_dead_nor_the_closed_get_anything(fill: str) -> None:
    model = model_of(4, alive=[True, False, True, True], open=[True, False, False, True])
    rows, order, room = rows_of([50] * 12), np.arange(12), np.full(4, 12)
    load = Placed(model, rows).load(12)
    made: dict[str, Any] = {
        "fewest": lambda: by_fewest(model, rows, load, order),
        "end": lambda: by_end(model, rows, load, order, room, np.full(4, np.inf), np.ones(12)),
        "cuts": lambda: by_cuts(model, rows, load, order, np.flatnonzero(model.open), room),
    }
    assert set(made[fill]().tolist()) == {0, 3}
