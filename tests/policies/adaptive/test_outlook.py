from dataclasses import replace

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.outlook import FEWEST, MOST, Outlook, free_slots

Q, R, L, E, P = Phase.QUEUED, Phase.RUNNING, Phase.LEAVING, Phase.ENDED, Phase.PARKED
MIXED = observation(
    trajectory_table(
        [Q, R, L, L, E, P],
        replica_row=[-1, 0, 0, 0, -1, -1],
        target_row=[-1, -1, 1, -1, -1, -1],
        generated_tokens=[0, 10, 20, 30, 40, 50],
    ),
    replica_table(3, alive=[True, True, False], max_num_seqs=[2, 0, 4]),
)


def of(seen: Observation, mean: list[float], contexts: Contexts | None = None) -> Outlook:
    return Outlook.of(seen, forecast_of(seen, mean), contexts or Contexts())


def test_each_counts_where_it_is_or_will_be_and_ended_ones_have_nothing_left() -> None:
    """What leaves for a replica counts there; what leaves for none, nowhere."""
    outlook = of(MIXED, [100, 200, 300, 400, 0, 500])
    assert outlook.load.total[0].tolist() == pytest.approx([200, 300, 0])
    assert outlook.load.number.tolist() == [1, 1, 0]
    assert (outlook.rows.length[:, 4] == 0).all()
    assert outlook.rows.length[0].tolist() == pytest.approx([100, 200, 300, 400, 0, 500])


def test_a_context_ends_with_what_was_and_will_be_written_and_what_tools_add() -> None:
    outlook = of(MIXED, [100] * 6, Contexts(growth=3.0, stretch=2.0))
    assert outlook.rows.context.tolist() == [100, 130, 160, 190, 220, 250]
    assert outlook.final.tolist() == [400, 430, 460, 490, 520, 550]
    np.testing.assert_allclose(outlook.rows.chain, 2 * outlook.rows.length)


def test_an_unknown_cache_has_room_for_all_and_no_slots_are_one() -> None:
    model = of(MIXED, [100] * 6).model
    assert np.isinf(model.capacity).all()
    assert model.slots.tolist() == [2, 1, 4]
    assert model.open.tolist() == [True, True, False]


@pytest.mark.parametrize(("n", "count"), [(0, MOST), (100, MOST), (4000, 20), (10_000, FEWEST)])
def test_the_more_trajectories_the_fewer_scenarios(n: int, count: int) -> None:
    seen = observation(trajectory_table([Q] * n), replica_table(1))
    assert of(seen, [10.0] * n).rows.length.shape == (count, n)


def test_only_some_open_and_all_faster() -> None:
    outlook = of(MIXED, [100] * 6)
    faster = outlook.only(np.array([False, True, True]), 0.5)
    assert faster.model.open.tolist() == [False, True, False]
    assert faster.model.fixed_s.tolist() == [0.005] * 3
    np.testing.assert_allclose(faster.last_s(faster.load), 0.5 * outlook.last_s(outlook.load))


def test_free_slots_are_those_of_open_replicas_that_nothing_is_on_its_way_to() -> None:
    everywhere = np.array([True, True, True])
    assert free_slots(MIXED, everywhere).tolist() == [1, 0, 4]
    assert free_slots(MIXED, np.array([True, True, False])).tolist() == [1, 0, 0]


def test_a_replica_that_takes_no_time_at_all_does_not_divide_by_nothing() -> None:
    forecast = forecast_of(MIXED, [100] * 6)
    instant = replace(forecast, throughput=replace(forecast.throughput, fixed_s=np.zeros(3)))
    assert (Outlook.of(MIXED, instant, Contexts()).model.fixed_s > 0).all()
