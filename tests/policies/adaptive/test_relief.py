from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.observations import (
    forecast_of,
    observation,
    random_observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.policies.adaptive import relief as module
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.outlook import Outlook
from steersman.policies.adaptive.relief import Move, moves

R = Phase.RUNNING


def running(rows: list[int], replicas: int, slots: int = 32, **columns: Any) -> Observation:
    columns.setdefault("generated_tokens", [1000] * len(rows))
    table = trajectory_table([R] * len(rows), replica_row=rows, **columns)
    return observation(table, replica_table(replicas, max_num_seqs=[slots] * replicas))


def found(
    seen: Observation, forecast: Forecast, most: int = 8, movable: list[int] | None = None
) -> list[Move]:
    outlook = Outlook.of(seen, forecast, Contexts())
    rows = seen.running if movable is None else np.array(movable, dtype=np.int64)
    return moves(seen, forecast, outlook, rows, most, 0.05)


FOUR_ON_ONE = running([0, 0, 0, 0], 2)
SLOPE = {"fixed_s": 0.01, "per_sequence_s": 0.004}
"""With 1000 tokens left each: 10 + 16 s on r0; without one 10 + 12 s, and that one 14 s alone."""


def test_a_loaded_replica_gives_to_an_idle_one() -> None:
    (move,) = found(FOUR_ON_ONE, forecast_of(FOUR_ON_ONE, [1000] * 4, **SLOPE), most=1)
    assert (move.row, move.source, move.target) == (0, 0, 1)
    assert move.gain_s == pytest.approx(4.0)
    assert move.cost_s == pytest.approx(0.02 + 1100 * 0.0001)
    assert move.behind_s == pytest.approx(13.0)


def test_the_next_move_counts_those_before() -> None:
    """After two moves 18 s and 18.2 s are left: a third would gain nothing."""
    three = found(FOUR_ON_ONE, forecast_of(FOUR_ON_ONE, [1000] * 4, **SLOPE))
    assert [(move.row, move.source, move.target) for move in three] == [(0, 0, 1), (1, 0, 1)]
    assert [move.gain_s for move in three] == pytest.approx([4.0, 26 - 4 - 18.35], abs=0.2)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_more_than_allowed_move(most: int) -> None:
    seen = running([0] * 16, 4)
    assert len(found(seen, forecast_of(seen, [1000] * 16, **SLOPE), most)) == most


def test_it_is_the_last_replica_that_is_relieved() -> None:
    """r1 is as full as r0, but its trajectories are short."""
    seen = running([0] * 6 + [1] * 6, 3)
    chosen = found(seen, forecast_of(seen, [2000] * 6 + [300] * 6, **SLOPE), most=2)
    assert {move.source for move in chosen} == {0}
    assert {move.target for move in chosen} <= {1, 2}


@pytest.mark.parametrize(
    ("rows", "mean"),
    [([0, 0, 1, 1], [1000, 900, 950, 950]), ([0], [5000]), ([0, 1, 1, 1], [5000, 10, 10, 10])],
    ids=["level replicas", "alone already", "the longest alone"],
)
def test_nothing_moves_where_that_gains_nothing(rows: list[int], mean: list[float]) -> None:
    seen = running(rows, 2)
    assert found(seen, forecast_of(seen, mean)) == []


def test_nothing_moves_when_it_costs_more_than_it_saves() -> None:
    dear = forecast_of(FOUR_ON_ONE, [1000] * 4, **SLOPE, prefill_token_s=0.02)
    assert found(FOUR_ON_ONE, dear) == []


def test_nothing_moves_that_is_not_movable() -> None:
    forecast = forecast_of(FOUR_ON_ONE, [1000] * 4, **SLOPE)
    assert found(FOUR_ON_ONE, forecast, movable=[]) == []
    assert [move.row for move in found(FOUR_ON_ONE, forecast, movable=[2])] == [2]


@pytest.mark.parametrize(("slots", "count"), [(1, 0), (2, 1), (3, 2)])
def test_no_more_move_than_slots_are_free_there(slots: int, count: int) -> None:
    """One that hardly has anything left takes one of them."""
    seen = running([0, 0, 0, 0, 1], 2, slots=slots)
    assert len(found(seen, forecast_of(seen, [1000] * 4 + [10], **SLOPE))) == count


@pytest.mark.parametrize(("capacity", "count"), [(1000.0, 0), (2000.0, 1), (0.0, 2)])
def test_no_more_move_than_contexts_fit_there(capacity: float, count: int) -> None:
    """Each holds 1100 tokens: one fits into 2000, and none into 1000; 0 is not known."""
    forecast = forecast_of(FOUR_ON_ONE, [100] * 4, **SLOPE, prefill_token_s=0.0)
    throughput = replace(forecast.throughput, kv_capacity_tokens=np.array([1e6, capacity]))
    assert len(found(FOUR_ON_ONE, replace(forecast, throughput=throughput))) == count


@pytest.mark.parametrize(("error_s", "goes"), [(0.0, True), (0.6, True), (0.7, False)])
def test_a_gain_must_exceed_one_and_a_half_of_its_standard_errors(
    monkeypatch: pytest.MonkeyPatch, error_s: float, goes: bool
) -> None:
    monkeypatch.setattr(module, "best_move", lambda *_: (0, 1, 1.0, error_s, 0.1))
    assert bool(found(FOUR_ON_ONE, forecast_of(FOUR_ON_ONE, [1000] * 4), most=1)) is goes


def test_nothing_moves_to_or_from_the_dead() -> None:
    seen = running([0, 0, 0, 0], 3)
    dead = replace(seen, replicas=replace(seen.replicas, alive=np.array([True, False, True])))
    forecast = forecast_of(seen, [1000] * 4, **SLOPE)
    assert {move.target for move in found(dead, forecast)} == {2}
    for alive in ([False, True, True], [True, False, False], [False] * 3):
        dead = replace(seen, replicas=replace(seen.replicas, alive=np.array(alive)))
        assert found(dead, forecast) == []


def test_a_gain_that_the_draws_cannot_tell_from_nothing_moves_nothing() -> None:
    """Two alike on a replica each: in every other scenario the other is last."""
    seen = running([0, 0, 1, 1], 2)
    assert found(seen, forecast_of(seen, [1000] * 4, spread=0.9)) == []


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_whatever_moves_is_legal_and_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen = random_observation(rng, 60, 4, slots=16, alive_share=0.8)
    forecast = forecast_of(seen, rng.lognormal(6, 1, 60).tolist(), spread=0.3)
    chosen = found(seen, forecast)
    alive, inflight = seen.replicas.alive, seen.inflight()
    assert len({move.row for move in chosen}) == len(chosen) <= 8
    for move in chosen:
        assert seen.trajectories.phase[move.row] == R
        assert seen.trajectories.replica_row[move.row] == move.source != move.target
        assert alive[move.target]
        assert move.gain_s >= 0.05
        inflight[move.target] += 1
        assert inflight[move.target] <= seen.replicas.max_num_seqs[move.target]
        inflight[move.source] -= 1
