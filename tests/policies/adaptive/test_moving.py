import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_worlds import Placed, model_of, random_placed, rows_of

from steersman.policies.adaptive._moving import best_move

Found = tuple[int, int, float, float, float]


def ask(
    placed: Placed, source: int, kv_room: np.ndarray, handover_s: np.ndarray, groups: int = 5
) -> Found:
    """Any of the source's rows to any other living replica."""
    candidates = np.array([i for i, r in placed.began.items() if r == source], dtype=np.int64)
    living = np.flatnonzero(placed.model.alive)
    targets = living[living != source]
    load = placed.load(groups)
    found: Found = best_move(
        placed.model, placed.rows, load, candidates, source, targets, kv_room, handover_s
    )
    return found


def moved(placed: Placed, i: int, to: int, handover_s: float) -> np.ndarray:
    """(S,) how much earlier the last replica ends, both times from scratch: the target prefills,
    and whoever moves stands still for that and for the hand-over."""
    m, rows = placed.model, placed.rows
    prefill_s = m.prefill_token_s[to] * rows.context[i]
    later = rows.chain.copy()
    later[:, i] += (handover_s + prefill_s) / m.fixed_s[to]
    after = Placed(m, rows._replace(chain=later), {**placed.began, i: to}).ends()
    after[:, to] += prefill_s
    return np.asarray(placed.ends().max(axis=1) - after.max(axis=1))


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_the_move_is_the_best_and_its_gain_what_the_plan_from_scratch_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    placed, _ = random_placed(rng, all_open=True)
    if not placed.began:
        return
    replicas = len(placed.model.fixed_s)
    ends = placed.ends()
    source = int(ends.mean(axis=0).argmax())
    handover_s = rng.uniform(0, 2.0, replicas)
    kv_room = rng.uniform(0, 8000, replicas)
    row, target, gain_s, error_s, cost_s = ask(placed, source, kv_room, handover_s)
    gains = {
        (i, r): moved(placed, i, r, handover_s[r])
        for i, here in placed.began.items()
        for r in range(replicas)
        if here == source and r != source and placed.rows.context[i] <= kv_room[r]
    }
    best = max((gain.mean() for gain in gains.values()), default=0.0)
    if row < 0:
        assert best <= 1e-9
        return
    gain = gains[row, target]
    assert gain_s == pytest.approx(gain.mean())
    assert gain_s == pytest.approx(best)
    assert error_s == pytest.approx(gain.std() / np.sqrt(len(gain)), abs=1e-6)
    prefill_s = placed.model.prefill_token_s[target] * placed.rows.context[row]
    assert cost_s == pytest.approx(handover_s[target] + prefill_s)


FREE = np.full(2, np.inf)


def two(**columns: float) -> Placed:
    """100 and 90 tokens on r0, nothing on r1; with c as much as M: 2.9 s, or 2 s apart."""
    model = model_of(2, sequence_s=0.01, **columns)
    return Placed(model, rows_of([100, 90], context=1000), {0: 0, 1: 0})


def test_one_of_two_moves_to_the_idle_replica() -> None:
    assert ask(two(), 0, FREE, np.zeros(2), 2)[:3] == (0, 1, pytest.approx(0.9))


def test_the_hand_over_delays_whoever_moves() -> None:
    """The shorter then moves: 1.8 s + 0.5 s there."""
    row, _, gain_s, _, cost_s = ask(two(), 0, FREE, np.array([0.0, 0.5]), 2)
    assert (row, gain_s, cost_s) == (1, pytest.approx(2.9 - 2.3), pytest.approx(0.5))
    assert ask(two(), 0, FREE, np.array([0.0, 2.0]), 2)[0] == -1


def test_the_prefill_is_paid_for_the_whole_context() -> None:
    """1000 tokens at 0.1 ms each delay the move, and stall the target."""
    row, _, gain_s, _, cost_s = ask(two(prefill_token_s=1e-4), 0, FREE, np.zeros(2), 2)
    assert (row, gain_s, cost_s) == (1, pytest.approx(2.9 - 2.0), pytest.approx(0.1))
    assert ask(two(prefill_token_s=1e-3), 0, FREE, np.zeros(2), 2)[0] == -1


def test_nothing_moves_where_its_context_has_no_room() -> None:
    assert ask(two(), 0, np.array([np.inf, 999.0]), np.zeros(2), 2)[0] == -1


def test_nothing_moves_if_that_only_moves_the_end() -> None:
    assert ask(Placed(model_of(2), rows_of([100]), {0: 0}), 0, FREE, np.zeros(2), 1)[0] == -1
