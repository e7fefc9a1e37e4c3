"""WAR's switch: on below 16 sequences, off from there."""

import numpy as np
import pytest
from support.observations import observation, replica_table, trajectory_table

from steersman.controller.plugins import build as build_part
from steersman.estimators.forecast import Forecast
from steersman.policies.speculation.batch_threshold import BatchThreshold


def drafted(
    policy: BatchThreshold, batches: list[int], now: int = 0, **columns: object
) -> list[int]:
    """What each replica drafts after one decision, having drafted `now`."""
    n = len(batches)
    replicas = replica_table(
        n,
        running=np.array(batches),
        max_num_seqs=np.full(n, 256),
        max_draft_tokens=np.full(n, 8),
        draft_tokens=np.full(n, now),
        **columns,
    )
    seen = observation(trajectory_table([]), replicas)
    after = dict.fromkeys(replicas.names, now)
    for d in policy.decide(seen, Forecast.unknown(seen), np.random.default_rng(0)):
        after[d.replica] = d.draft_tokens
    return list(after.values())


def test_it_switches_at_sixteen_sequences() -> None:
    batches = [1, 8, 15, 16, 17, 200]
    assert drafted(BatchThreshold(), batches) == [8, 8, 8, 0, 0, 0]
    assert drafted(BatchThreshold(), batches, now=8) == [8, 8, 8, 0, 0, 0]


def test_an_idle_replica_is_left_as_it_is() -> None:
    assert drafted(BatchThreshold(), [0], now=0) == [0]
    assert drafted(BatchThreshold(), [0], now=8) == [8]


def test_a_list_of_ranges_takes_the_place_of_the_threshold() -> None:
    ranges = BatchThreshold(by_batch=((1, 4, 6), (5, 64, 2)))
    assert drafted(ranges, [1, 4, 5, 64, 65], now=1) == [6, 6, 2, 2, 0]


def test_a_configuration_can_name_the_ranges() -> None:
    options = {"by_batch": [[1, 4, 6], [5, 64, 2]]}
    built = build_part("policies.speculation", "batch_threshold", options)
    assert drafted(built, [3, 30]) == [6, 2]
    with pytest.raises(ValueError, match="first <= last"):
        build_part("policies.speculation", "batch_threshold", {"by_batch": [[4, 1, 6]]})


def test_an_old_report_of_the_batch_gives_way_to_what_was_sent_there() -> None:
    """Nothing was sent to it, so it is idle whatever it said half a minute ago."""
    assert drafted(BatchThreshold(), [3], metrics_age_s=np.array([30.0])) == [0]
    assert drafted(BatchThreshold(), [3], metrics_age_s=np.array([0.5])) == [8]
