"""Who goes first under a plan."""

import numpy as np
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.lifecycle import Phase
from steersman.policies.adaptive.order import ordered
from steersman.policies.adaptive.plans import Order

QUEUED, RUNNING = Phase.QUEUED, Phase.RUNNING


def test_each_order_is_what_it_says() -> None:
    phases = [QUEUED, QUEUED, RUNNING, QUEUED, QUEUED, QUEUED]
    at = np.array([-1, -1, 0, -1, -1, -1])
    seen = observation(trajectory_table(phases, 2, replica_row=at), replica_table(1))
    forecast = forecast_of(seen, [100, 300, 500, 500, 500, 510])
    assert ordered(Order.ARRIVAL, seen, forecast).tolist() == [0, 1, 3, 4, 5]
    assert ordered(Order.LONGEST, seen, forecast).tolist() == [5, 3, 4, 1, 0]
    # 500 and 510 are alike; of the group of 3 one runs, 4 is the first of its group and 5 the next
    assert ordered(Order.OPTIMISTIC, seen, forecast).tolist() == [4, 3, 5, 1, 0]
