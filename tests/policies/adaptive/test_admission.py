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
from steersman.policies.adaptive.admission import (
    CUT,
    DEFAULT,
    LONGEST,
    MOST_WAITING,
    Assignment,
    assignments,
    fits_at_once,
    gathered,
    held,
    memory_room,
)
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.order import ordered
from steersman.policies.adaptive.outlook import Outlook, free_slots
from steersman.policies.adaptive.plans import Order, Plan
from steersman.policies.adaptive.sharing import FEWEST, Sharing

Q, R, E = Phase.QUEUED, Phase.RUNNING, Phase.ENDED
HOLD = Plan("hold", hold=True, order=Order.OPTIMISTIC, promise=1.0)


def waiting(
    n: int, replicas: int, group_size: int = 1, slots: int = 64, **more: Any
) -> Observation:
    return observation(
        trajectory_table([Q] * n, group_size, **more),
        replica_table(replicas, max_num_seqs=[slots] * replicas),
    )


def with_throughput(forecast: Forecast, **columns: Any) -> Forecast:
    """Numbers are of all replicas."""
    r = len(forecast.throughput.fixed_s)
    full = {name: np.broadcast_to(value, r).astype(float) for name, value in columns.items()}
    return replace(forecast, throughput=replace(forecast.throughput, **full))


def planned(seen: Observation, forecast: Forecast) -> dict[str, Assignment]:
    return assignments(seen, forecast, Outlook.of(seen, forecast, Contexts()))


def best(seen: Observation, forecast: Forecast) -> Assignment:
    return min(planned(seen, forecast).values(), key=lambda plan: plan.end_s)


def by_row(plan: Assignment) -> dict[int, int]:
    return dict(zip(plan.rows.tolist(), plan.target.tolist(), strict=True))


def test_the_long_ones_of_a_weak_tail_are_isolated() -> None:
    """M = 10 ms, c = 1 ms, 60 of 1000 tokens and 4 of 2000 on four replicas.  Spread over all, each
    replica pays 20 s for its longest and 17 s for its tokens; if one takes the long ones, it
    ends after 28 s and the others after 30 s."""
    length = [2000] * 4 + [1000] * 60
    seen = waiting(64, 4)
    forecast = forecast_of(seen, length, prefill_token_s=0.0)
    made, plan = planned(seen, forecast), best(seen, forecast)
    assert made[DEFAULT].end_s == pytest.approx(37.0)
    assert plan.name == CUT
    assert plan.end_s < 31.5
    home = by_row(plan)
    assert len({home[row] for row in range(4)}) == 1
    assert sum(to == home[0] for to in home.values()) < 16


def test_siblings_stay_together_where_prompts_are_dear() -> None:
    """Eight groups of four, a prompt takes 4 s; the default computes each on every replica."""
    seen = waiting(32, 4, group_size=4, prompt_tokens=[4000] * 32)
    length = np.repeat(1000 + 10 * np.arange(8), 4).tolist()
    plan = best(seen, forecast_of(seen, length, prefill_token_s=0.001))
    home = by_row(plan)
    copies = len({(row // 4, to) for row, to in home.items()})
    assert copies == 8
    assert (
        plan.end_s
        < planned(seen, forecast_of(seen, length, prefill_token_s=0.001))[DEFAULT].end_s - 20.0
    )


def test_what_runs_already_is_balanced() -> None:
    """r0 has 3000 tokens to go at 1 ms, so all four that wait go to r1."""
    table = trajectory_table([R, R, R, Q, Q, Q, Q], replica_row=[0, 0, 0, -1, -1, -1, -1])
    seen = observation(table, replica_table(2))
    plan = planned(seen, forecast_of(seen, [2000] * 3 + [500] * 4))[LONGEST]
    assert plan.target.tolist() == [1, 1, 1, 1]


def test_unlike_replicas_get_unlike_shares() -> None:
    seen = waiting(30, 2)
    forecast = with_throughput(
        forecast_of(seen, [1000] * 30, prefill_token_s=0.0),
        fixed_s=[0.01, 0.02], sequence_s=[0.001, 0.002],
    )  # fmt: skip
    plan = best(seen, forecast)
    assert plan.end_s < 0.8 * planned(seen, forecast)[DEFAULT].end_s
    assert (plan.target == 0).sum() > 20


@given(seed=st.integers(0, 2**32 - 1), alive_share=st.sampled_from([0.6, 1.0]))
@settings(deadline=None, max_examples=30)
def test_every_plan_places_all_on_living_replicas_and_none_is_chosen_that_is_worse(
    seed: int, alive_share: float
) -> None:
    rng = np.random.default_rng(seed)
    seen = random_observation(rng, 60, 4, alive_share=alive_share)
    if not seen.replicas.alive.any():
        return
    forecast = forecast_of(seen, rng.lognormal(6, 1, 60).tolist(), spread=0.5)
    made = planned(seen, forecast)
    assert list(made) == [DEFAULT, LONGEST, CUT]
    for plan in made.values():
        assert sorted(plan.rows.tolist()) == seen.queued.tolist()
        assert seen.replicas.alive[plan.target].all()
    assert min(plan.end_s for plan in made.values()) <= made[DEFAULT].end_s


# what has no slot, or no memory, is held


def test_all_fit_at_once_while_there_are_slots_and_memory() -> None:
    for slots, capacity, fits in ((4, 0, True), (3, 0, False), (4, 4400, True), (4, 4399, False)):
        seen = waiting(8, 2, slots=slots)
        forecast = with_throughput(forecast_of(seen, [1000] * 8), kv_capacity_tokens=capacity)
        assert fits_at_once(seen, Outlook.of(seen, forecast, Contexts()), 1.0) is fits


def scene(seed: int, capacity: float) -> tuple[Observation, Forecast, Outlook]:
    """Anything that waits and runs, on replicas of a few slots."""
    rng = np.random.default_rng(seed)
    seen = random_observation(
        rng, 60, 5, slots=8, alive_share=0.8, weights=(0.6, 0.3, 0.05, 0, 0.05)
    )
    forecast = forecast_of(seen, rng.lognormal(6, 1, 60).tolist(), spread=0.5)
    forecast = with_throughput(forecast, kv_capacity_tokens=capacity)
    return seen, forecast, Outlook.of(seen, forecast, Contexts())


@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.sampled_from([0.0, 1.0, 5e3, 5e4]),
    promise=st.sampled_from([1.0, 3.0]),
    order=st.sampled_from(list(Order)),
)
@settings(deadline=None, max_examples=100)
def test_no_more_than_slots_and_promised_memory_are_given_but_an_idle_replica_gets_one(
    seed: int, capacity: float, promise: float, order: Order
) -> None:
    seen, forecast, outlook = scene(seed, capacity)
    plan = Plan("hold", True, order, promise)
    rows, target = held(seen, forecast, outlook, plan)
    count = len(seen.replicas)
    assert len(set(rows.tolist())) == len(rows)
    assert np.isin(rows, seen.queued).all()
    assert seen.replicas.alive[target].all()
    free = free_slots(seen, seen.replicas.alive)
    assert (np.bincount(target, minlength=count) <= free).all()
    room, idle = memory_room(seen, outlook, promise), seen.inflight() == 0
    for r in range(count):
        given_ = outlook.final[rows[target == r]]
        # the last one may be as large as it is, but there must have been room for it to begin
        allowed = max(room[r], 1.0) if idle[r] else room[r]
        assert not len(given_) or given_[:-1].sum() < allowed
    if len(seen.queued) and (idle & seen.replicas.alive).any():
        assert len(rows)


def test_a_replica_that_promised_all_its_memory_gets_nothing_more() -> None:
    """One runs that ends with 1100 tokens."""
    table = trajectory_table([R, Q, Q], replica_row=[0, -1, -1])
    seen = observation(table, replica_table(1))
    for capacity, expected in ((1000, []), (1100, []), (1200, [1]), (2300, [1, 2])):
        forecast = with_throughput(forecast_of(seen, [1000] * 3), kv_capacity_tokens=capacity)
        rows, _ = held(seen, forecast, Outlook.of(seen, forecast, Contexts()), HOLD)
        assert rows.tolist() == expected


def test_an_engine_with_a_queue_of_its_own_gets_nothing_more() -> None:
    table = trajectory_table([R, Q], replica_row=[0, -1])
    for in_queue, expected in ((MOST_WAITING, [1]), (MOST_WAITING + 1, [])):
        seen = observation(table, replica_table(1, waiting=[in_queue]))
        forecast = forecast_of(seen, [1000] * 2)
        rows, _ = held(seen, forecast, Outlook.of(seen, forecast, Contexts()), HOLD)
        assert rows.tolist() == expected


# who goes first


def test_where_nothing_is_known_one_of_each_group_goes_first() -> None:
    seen = waiting(9, 1, group_size=3)
    order = ordered(Order.OPTIMISTIC, seen, forecast_of(seen, [1000] * 9, spread=0.9))
    assert order.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_a_group_of_which_some_have_begun_has_its_turn_later() -> None:
    seen = observation(
        trajectory_table([R, E, Q, Q, Q, Q], 3, replica_row=[0, -1, -1, -1, -1, -1]),
        replica_table(1),
    )
    order = ordered(Order.OPTIMISTIC, seen, forecast_of(seen, [1000] * 6))
    assert order.tolist() == [3, 4, 2, 5]


def test_who_may_be_the_longest_goes_first_and_ten_percent_is_no_difference() -> None:
    seen = waiting(4, 1)
    forecast = forecast_of(seen, [1000] * 4)
    quantiles = np.array([[1, 900, 1001], [1, 800, 5000], [1, 990, 1000], [1, 100, 20_000]], float)
    forecast = replace(forecast, length=replace(forecast.length, remaining_tokens=quantiles))
    assert ordered(Order.OPTIMISTIC, seen, forecast).tolist() == [3, 1, 0, 2]


def test_by_arrival_and_by_expected_length() -> None:
    seen = waiting(4, 1)
    forecast = forecast_of(seen, [10, 40, 20, 40])
    assert ordered(Order.ARRIVAL, seen, forecast).tolist() == [0, 1, 2, 3]
    assert ordered(Order.LONGEST, seen, forecast).tolist() == [1, 3, 2, 0]


# on fewer replicas


def shared(gain: float, samples: float = 2 * FEWEST) -> Sharing:
    found = Sharing(gain=gain)
    found._gram[0, 0] = samples
    return found


def gather(sharing: Sharing, n: int = 64) -> list[bool] | None:
    """On eight replicas whose iterations take M, whatever the batch."""
    seen = waiting(n, 8)
    forecast = forecast_of(seen, [1000] * n, per_sequence_s=1e-5)
    outlook = Outlook.of(seen, forecast, Contexts())
    end_s = min(plan.end_s for plan in assignments(seen, forecast, outlook).values())
    found = gathered(seen, forecast, outlook, sharing, end_s)
    if found is None:
        return None
    assert found[1].end_s < 0.9 * end_s
    assert set(found[1].target.tolist()) <= set(np.flatnonzero(found[0].model.open).tolist())
    return [bool(is_open) for is_open in found[0].model.open]


def test_a_step_is_gathered_where_idle_replicas_speed_up_the_others() -> None:
    found = gather(shared(-0.5))
    assert found is not None
    assert 1 <= sum(found) <= 4


@pytest.mark.parametrize(
    "sharing", [Sharing(), shared(0.0), shared(-0.05), shared(0.3), shared(-0.5, FEWEST - 1)],
    ids=["nothing learned", "nothing shared", "next to nothing", "the other way", "too few"],
)  # fmt: skip
def test_nothing_is_gathered_where_that_is_not_known(sharing: Sharing) -> None:
    assert gather(sharing) is None


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_without_sharing_no_workload_is_gathered(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 100))
    seen = waiting(n, 4)
    forecast = forecast_of(seen, rng.lognormal(6, 1, n).tolist(), spread=0.5)
    outlook = Outlook.of(seen, forecast, Contexts())
    end_s = min(plan.end_s for plan in assignments(seen, forecast, outlook).values())
    assert gathered(seen, forecast, outlook, shared(0.0), end_s) is None
