import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Observation
from steersman.policies.contract import PlacementPolicy
from steersman.policies.placement.round_robin import RoundRobin
from steersman.policies.placement.sticky_least_inflight import StickyLeastInflight
from steersman.policies.placement.sticky_least_loaded import StickyLeastLoaded

R, Q = Phase.RUNNING, Phase.QUEUED


def fleet(rows: list[int], alive: list[bool]) -> Observation:
    """Trajectory i runs on replica rows[i], or waits where that is -1."""
    phase = [Q if row == NO_ROW else R for row in rows]
    table = trajectory_table(phase, replica_row=rows)
    return observation(table, replica_table(len(alive), alive=alive))


def placements(policy: PlacementPolicy, seen: Observation, seed: int = 0) -> dict[int, str]:
    forecast = forecast_of(seen, [100.0] * len(seen.trajectories))
    decisions = policy.decide(seen, forecast, np.random.default_rng(seed))
    return {d.trajectory_id: d.replica for d in decisions}


STICKY = [StickyLeastInflight, StickyLeastLoaded]


@pytest.mark.parametrize("policy", STICKY)
def test_a_trajectory_returns_to_its_replica(policy: type[PlacementPolicy]) -> None:
    mine = policy()
    placements(mine, fleet([2, 2, 2, 0], [True] * 3))
    assert placements(mine, fleet([-1, 2, 2, 0], [True] * 3)) == {0: "r2"}


@pytest.mark.parametrize("policy", STICKY)
def test_it_goes_to_the_emptiest_when_its_replica_is_dead(policy: type[PlacementPolicy]) -> None:
    mine = policy()
    placements(mine, fleet([2, 1, 0, 0], [True] * 3))
    assert placements(mine, fleet([-1, 1, 0, 0], [True, True, False])) == {0: "r1"}


@pytest.mark.parametrize("policy", STICKY)
def test_new_trajectories_level_the_replicas(policy: type[PlacementPolicy]) -> None:
    placed = placements(policy(), fleet([0, 0, 0, 1, -1, -1, -1, -1, -1], [True] * 3))
    assert sorted(placed.values()) == ["r1", "r1", "r2", "r2", "r2"]


def test_ties_are_broken_by_chance() -> None:
    seen = fleet([-1], [True] * 4)
    chosen = {placements(StickyLeastInflight(), seen, seed)[0] for seed in range(40)}
    assert chosen == {"r0", "r1", "r2", "r3"}


def test_a_home_is_found_again_when_replicas_join() -> None:
    mine = StickyLeastInflight()
    placements(mine, fleet([1, 0], [True] * 2))
    table = trajectory_table([Q, R], replica_row=[-1, 3])
    grown = observation(table, replica_table(4, names=("q0", "q1", "r1", "r0")))
    assert placements(mine, grown) == {0: "r1"}


def test_under_imbalance_a_pin_is_given_up() -> None:
    rows, alive = [0] * 9 + [1], [True] * 2
    back = [-1, *rows[1:]]
    for policy, home in (
        (StickyLeastLoaded(imbalance_requests=5, imbalance_ratio=1.5), "r1"),
        (StickyLeastLoaded(imbalance_requests=20, imbalance_ratio=1.5), "r0"),
        (StickyLeastLoaded(imbalance_requests=5, imbalance_ratio=20), "r0"),
    ):
        placements(policy, fleet(rows, alive))
        assert placements(policy, fleet(back, alive)) == {0: home}


def test_a_session_between_two_attempts_counts_on_its_replica() -> None:
    mine = StickyLeastLoaded()
    placements(mine, fleet([0, 0, 1, 1, 1, -1], [True] * 2))
    placed = placements(mine, fleet([-1, -1, 1, 1, 1, -1], [True] * 2))
    assert placed[0] == placed[1] == "r0"


def test_round_robin_takes_turns_across_ticks_and_skips_the_dead() -> None:
    mine = RoundRobin()
    assert placements(mine, fleet([-1, -1], [True, False, True])) == {0: "r0", 1: "r2"}
    assert placements(mine, fleet([-1, -1], [True, True, True])) == {0: "r0", 1: "r1"}
    assert placements(mine, fleet([-1, -1], [True, True, True])) == {0: "r2", 1: "r0"}
