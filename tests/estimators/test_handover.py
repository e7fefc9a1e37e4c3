import json

import numpy as np
import pytest
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import TrajectoryTable
from steersman.estimators.throughput import IterationTime


def moved(took_s: float, onto: int, placed_s: float) -> TrajectoryTable:
    """One trajectory that came onto replica `onto` at `placed_s`."""
    return trajectory_table(
        [Phase.RUNNING],
        replica_row=[onto],
        moves=[1],
        queued_s=[50.0],
        moved_s=[placed_s - took_s],
        placed_s=[placed_s],
    )


def test_the_hand_over_is_what_moves_took_on_their_target() -> None:
    estimator, counters, start_s = IterationTime(), replica_table(3), 100.0
    took = np.array([0.1, 0.4, 0.001])  # the third came long ago, and is still there
    for tick in range(31):
        now_s = start_s + 0.25 * tick
        placed = np.array([now_s - 0.01, now_s - 0.01, start_s - 0.01])
        table = trajectory_table(
            [Phase.RUNNING] * 3,
            replica_row=[0, 1, 0],
            moves=[1] * 3,
            queued_s=[start_s - 50.0] * 3,
            moved_s=placed - took,
            placed_s=placed,
        )
        estimator.observe(observation(table, counters, now_s=now_s, tick=tick))
    found = estimator.forecast(observation(trajectory_table([]), counters)).handover_s
    assert found[:2] == pytest.approx(took[:2], rel=0.15)
    assert 0.1 < found[2] < 0.4, "where none arrived, the fleet's mean"
    restored = IterationTime()
    restored.load_state_dict(json.loads(json.dumps(estimator.state_dict())))
    restored.observe(observation(table, counters, now_s=now_s + 0.25))
    again = restored.forecast(observation(trajectory_table([]), counters)).handover_s
    assert (again == found).all(), "old news stay old over a restore"


def test_one_slow_hand_over_is_doubted_and_many_are_believed() -> None:
    estimator, counters = IterationTime(), replica_table(2)
    found = []
    for tick, took in enumerate([0.1] * 30 + [1.0] * 60):
        placed = 100.0 + tick
        table = moved(took, 0 if took < 1 else 1, placed)
        estimator.observe(observation(table, counters, now_s=placed + 0.1))
        found.append(estimator.forecast(observation(trajectory_table([]), counters)).handover_s[1])
    assert found[29] == pytest.approx(0.1, rel=0.1), "none arrived there yet"
    assert found[30] < 0.3
    assert found[-1] == pytest.approx(1.0, rel=0.25)


def test_a_hand_over_that_grew_slower_is_followed() -> None:
    estimator, counters = IterationTime(), replica_table(1)
    for tick, took in enumerate([0.1] * 60 + [0.5] * 60):
        placed = 100.0 + tick
        table = moved(took, 0, placed)
        estimator.observe(observation(table, counters, now_s=placed + 0.1))
    found = estimator.forecast(observation(trajectory_table([]), counters)).handover_s
    assert found == pytest.approx([0.5], rel=0.2)


def test_what_waited_in_the_queue_was_not_handed_over() -> None:
    estimator = IterationTime()
    columns = {"replica_row": [0], "moves": [1], "placed_s": [130.0], "moved_s": [100.0]}
    for now_s, queued_s in ((90.0, 50.0), (131.0, 101.0)):
        table = trajectory_table([Phase.RUNNING], queued_s=[queued_s], **columns)
        if now_s > 130:
            estimator.observe(observation(table, replica_table(1), now_s=now_s))
    prior = IterationTime().forecast(observation(trajectory_table([]), replica_table(1)))
    found = estimator.forecast(observation(trajectory_table([]), replica_table(1)))
    assert found.handover_s == pytest.approx(prior.handover_s)
