from typing import Any

import numpy as np
import pytest
from support.observations import (
    STEP_START_S,
    forecast_of,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    Objective,
    Observation,
    TrainerSignal,
)
from steersman.policies.decision import Action, Decision
from steersman.policies.placement.tail_planner import TailPlanner

Q, R, P = Phase.QUEUED, Phase.RUNNING, Phase.PARKED


def decide(
    policy: TailPlanner, seen: Observation, mean: list[float], **forecast: Any
) -> list[Decision]:
    return policy.decide(seen, forecast_of(seen, mean, **forecast), np.random.default_rng(0))


def waiting(count: int, replicas: int, slots: int, **more: Any) -> Observation:
    table = trajectory_table([Q] * count, group_size=more.pop("group_size", 1))
    return observation(table, replica_table(replicas, max_num_seqs=[slots] * replicas), **more)


def running(rows: list[int], replicas: int, group_size: int = 1, **columns: Any) -> Observation:
    n = len(rows)
    columns.setdefault("generated_tokens", [1000] * n)
    columns.setdefault("oldest_weight_version", [0] * n)
    trainer = columns.pop("trainer", TrainerSignal())
    now_s = columns.pop("now_s", STEP_START_S)
    phase = columns.pop("phase", [R] * n)
    table = trajectory_table(phase, group_size, replica_row=rows, **columns)
    return observation(table, replica_table(replicas), now_s, trainer=trainer)


def test_the_longest_go_first_each_to_where_the_end_is_soonest() -> None:
    """M = 10 ms, c = 1 ms: 100 and 90 tokens take 1.1 s and 0.99 s, so 50 goes with the 90."""
    decisions = decide(TailPlanner(), waiting(4, 2, 8), [50, 100, 10, 90])
    assert [(d.trajectory_id, d.replica) for d in decisions] == [
        (1, "r0"),
        (3, "r1"),
        (0, "r1"),
        (2, "r1"),
    ]


def test_only_what_fits_and_a_small_backlog_is_placed() -> None:
    decisions = decide(TailPlanner(backlog=1), waiting(10, 2, 2), [float(i) for i in range(10)])
    assert [d.trajectory_id for d in decisions] == [9, 8, 7, 6, 5, 4]


def test_a_replica_whose_engine_has_a_queue_gets_nothing_more() -> None:
    table = trajectory_table([R, Q], replica_row=[0, -1])
    for age_s, expected in ((0.0, []), (10.0, ["r0"])):
        replicas = replica_table(1, waiting=[9], metrics_age_s=[age_s])
        decisions = decide(TailPlanner(), observation(table, replicas), [10, 10])
        assert [d.replica for d in decisions] == expected


def test_for_a_stream_the_group_with_the_least_left_goes_first_and_old_steps_before_new() -> None:
    groups = group_table(3, size=[2, 2, 2], step=[1, 1, 0])
    trainer = TrainerSignal(step=1, objective=Objective.STREAM)
    seen = waiting(6, 1, 6, group_size=2, groups=groups, trainer=trainer)
    decisions = decide(TailPlanner(), seen, [900, 10, 50, 60, 5000, 4000])
    assert [d.trajectory_id for d in decisions] == [4, 5, 2, 3, 0, 1]


FOUR_ON_ONE = running([0, 0, 0, 0], 2)
SLOPE = {"fixed_s": 0.01, "per_sequence_s": 0.004}
"""With 1000 tokens left each: 10 + 16 s on r0; without one 10 + 12 s, and that one 14 s alone."""


def test_a_loaded_replica_gives_one_of_its_longest_to_an_idle_one() -> None:
    (move,) = decide(TailPlanner(max_moves=1), FOUR_ON_ONE, [1000] * 4, **SLOPE)
    assert (move.action, move.trajectory_id, move.replica) == (Action.MIGRATE, 0, "r1")
    assert move.cost_s == pytest.approx(0.5 + 1100 * 0.0001)
    assert move.gain_s == pytest.approx(4.0)
    assert move.reason == (
        "r0 would end 26.0 s after r1; moving one of its longest takes 0.6 s,"
        " and all end 4.0 s sooner"
    )


def test_the_second_move_counts_the_first() -> None:
    """After two moves 18 s and 18.7 s are left: a third would gain nothing."""
    moves = decide(TailPlanner(max_moves=9), FOUR_ON_ONE, [1000] * 4, **SLOPE)
    assert [(m.trajectory_id, m.replica) for m in moves] == [(0, "r1"), (1, "r1")]


def test_nothing_moves_when_it_costs_more_than_it_saves() -> None:
    assert decide(TailPlanner(), FOUR_ON_ONE, [1000] * 4, **SLOPE, prefill_token_s=0.005) == []


def test_nothing_moves_on_a_gain_that_a_short_straggler_would_undo() -> None:
    """At the lower quantile nothing is left of it, so the move would be its cost and no gain."""
    assert decide(TailPlanner(), FOUR_ON_ONE, [1000] * 4, **SLOPE, spread=1.0) == []


def test_what_moved_a_moment_ago_rests() -> None:
    seen = running([0, 0, 0, 0], 2, now_s=100.0, moved_s=[95.0, 95.0, 70.0, 95.0])
    moves = decide(TailPlanner(cooldown_s=20), seen, [1000] * 4, **SLOPE)
    assert [move.trajectory_id for move in moves] == [2]


def test_level_replicas_are_left_alone() -> None:
    assert decide(TailPlanner(), running([0, 0, 1, 1], 2), [1000, 900, 950, 900]) == []


def in_the_tail(left: int, **columns: Any) -> tuple[TailPlanner, Observation]:
    """A step of 10 groups of two began 30 s ago; `left` groups are not finished."""
    policy = TailPlanner(max_moves=0)
    decide(policy, running([0] * 20, 1, group_size=2), [100.0] * 20)
    seen = running([0] * 2 * left, 1, group_size=2, now_s=STEP_START_S + 30, **columns)
    return policy, seen


def test_the_last_group_is_put_off_whole_when_that_pays() -> None:
    """1 of 10 groups would keep the step from ending now, for 10 * 1 + 1 * 2 = 12 s of 42."""
    policy, seen = in_the_tail(1)
    decisions = decide(policy, seen, [1000, 1000])
    assert [(d.action, d.trajectory_id) for d in decisions] == [
        (Action.DEFER, 0),
        (Action.DEFER, 1),
    ]
    assert decisions[0].gain_s == pytest.approx(12.0)
    assert "1 of the step's 10 groups" in decisions[0].reason


def test_it_is_not_put_off_for_less_than_its_share_of_the_step() -> None:
    """It is a tenth of the step's groups; ending 3 s of 33 earlier is less than that."""
    policy, seen = in_the_tail(1)
    assert decide(policy, seen, [250, 250]) == []


def test_it_is_not_put_off_if_it_may_well_end_soon() -> None:
    policy, seen = in_the_tail(1)
    assert decide(policy, seen, [1000, 1000], spread=0.9) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"trainer": TrainerSignal(weight_version=4, max_lag=1), "oldest_weight_version": [4, 3]},
        {"trainer": TrainerSignal(max_lag=0)},
        {"trainer": TrainerSignal(objective=Objective.STREAM)},
        {"deferred": [0, 1]},
    ],
    ids=["beyond the lag bound", "no lag allowed", "a stream has no barrier", "put off before"],
)
def test_a_group_stays_where_deferral_is_not_allowed(columns: dict[str, Any]) -> None:
    policy, seen = in_the_tail(1, **columns)
    assert decide(policy, seen, [1000, 1000]) == []


def test_a_group_goes_within_the_lag_bound() -> None:
    trainer = TrainerSignal(weight_version=4, max_lag=2)
    policy, seen = in_the_tail(1, trainer=trainer, oldest_weight_version=[4, 3])
    assert len(decide(policy, seen, [1000, 1000])) == 2


def test_no_more_groups_are_put_off_than_the_share_allows() -> None:
    policy, seen = in_the_tail(3)
    assert decide(policy, seen, [1000] * 6) == []
    policy.defer_share = 0.3
    assert len(decide(policy, seen, [1000] * 6)) == 6
    policy, seen = in_the_tail(2, phase=[R, R, P, R])
    assert decide(policy, seen, [1000] * 4) == []
