"""Laminar's repack: tails are merged and whole replicas released, where that is of use."""

from typing import Any

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.config import load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, Result, replay
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Objective, Observation, TrainerSignal
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.policies.decision import Action, Decision
from steersman.policies.placement.laminar_repack import LaminarRepack

Q, R, LEAVING = Phase.QUEUED, Phase.RUNNING, Phase.LEAVING
STREAM = TrainerSignal(objective=Objective.STREAM)
PROFILE = HardwareProfile(
    name="toy", gpu="none", model="none", tensor_parallel=1, fixed_s=0.01, sequence_s=0.0002,
    token_s=1e-8, prefill_token_s=2e-5, kv_capacity_tokens=0, max_num_seqs=64,
)  # fmt: skip


def decide(policy: LaminarRepack, seen: Observation, slope: float = 0.0001) -> list[Decision]:
    forecast = forecast_of(seen, [100.0] * len(seen.trajectories), per_sequence_s=slope)
    return policy.decide(seen, forecast, np.random.default_rng(0))


def fleet(rows: list[int], replicas: int, trainer: TrainerSignal = STREAM, **more: Any) -> Any:
    """Trajectory i runs on replica rows[i], or waits where that is -1."""
    limits = {name: more.pop(name) for name in ("kv_capacity_tokens", "waiting") if name in more}
    phase = more.pop("phase", [Q if row < 0 else R for row in rows])
    table = trajectory_table(phase, replica_row=rows, **more)
    return observation(table, replica_table(replicas, **limits), trainer=trainer)


def actions(decisions: list[Decision]) -> list[tuple[Action, int, str]]:
    return [(d.action, d.trajectory_id, d.replica) for d in decisions]


def running_down(slope: float = 0.0001, **more: Any) -> list[tuple[Action, int, str]]:
    """Three replicas of five, two and one trajectories, after a peak; one more waits."""
    policy = LaminarRepack()
    rows = [0] * 5 + [1] * 2 + [2]
    tokens = [3000] * 8 + [0]
    decide(policy, fleet([*rows, -1], 3, generated_tokens=tokens))
    tokens = more.pop("generated_tokens", [1000] * 8 + [0])
    return actions(decide(policy, fleet([*rows, -1], 3, generated_tokens=tokens, **more), slope))


def test_an_empty_fleet_takes_equal_batches_and_then_nothing_until_one_is_empty() -> None:
    policy = LaminarRepack()
    names = [d.replica for d in decide(policy, fleet([-1] * 4, 2))]
    assert names == ["r0", "r1", "r0", "r1"]
    assert decide(policy, fleet([0, 1, 0, 1, -1, -1], 2)) == []
    freed = decide(policy, fleet([0, 0, -1, -1, -1], 2))
    assert actions(freed) == [(Action.PLACE, 2, "r1"), (Action.PLACE, 3, "r1"),
                              (Action.PLACE, 4, "r1")]  # fmt: skip


def test_the_smallest_tail_goes_onto_the_fullest_that_has_room() -> None:
    assert running_down() == [(Action.MIGRATE, 7, "r0")]


def test_the_fullest_that_has_no_room_is_passed_over() -> None:
    """5,500 tokens on r0 and 1,100 more are beyond 80 % of 8,000."""
    assert running_down(kv_capacity_tokens=[8000] * 3) == [(Action.MIGRATE, 7, "r1")]


@pytest.mark.parametrize(("slope", "merged"), [(0.009, True), (0.02, False)])
def test_nothing_is_merged_that_would_make_iterations_much_longer(
    slope: float, merged: bool
) -> None:
    """Two of one trajectory each: 28 ms for 19 is within a half more, 50 for 30 is not."""
    policy = LaminarRepack(slowdown=0.5)
    seen = [fleet([0, 1, -1], 2, generated_tokens=[n, n, 0]) for n in (900, 100)]
    decisions = [decide(policy, one, slope) for one in seen]
    assert [len(some) for some in decisions] == [0, int(merged)]


def test_a_replica_with_a_queue_or_at_its_peak_or_just_moved_is_not_merged() -> None:
    assert running_down(waiting=[0, 0, 1]) == [
        (Action.MIGRATE, 5, "r0"),
        (Action.MIGRATE, 6, "r0"),
    ]
    assert running_down(generated_tokens=[3000] * 8 + [0]) == []
    assert running_down(moved_s=[-np.inf] * 5 + [999.0] * 3 + [-np.inf]) == []


def test_nothing_is_merged_while_nothing_waits() -> None:
    policy = LaminarRepack()
    for tokens in (3000, 500):
        assert decide(policy, fleet([0, 1, 2], 3, generated_tokens=[tokens] * 3)) == []


def test_a_barrier_places_everything_at_once_and_moves_nothing() -> None:
    policy, barrier = LaminarRepack(), TrainerSignal()
    for tokens in (3000, 500):
        seen = fleet([0, 1, 2, -1, -1], 3, barrier, generated_tokens=[tokens] * 3 + [0, 0])
        assert actions(decide(policy, seen)) == [(Action.PLACE, 3, "r0"), (Action.PLACE, 4, "r1")]


def run(policy: str, *options: str, stream: bool = True) -> Result:
    lengths = Lengths(steps=2, groups=24, group_size=4, median_tokens=400, max_new_tokens=8192)
    config = load_config(None, [f"placement.name={policy}", "tick_s=1.0", *options], environ={})
    how = Options(inflight_groups=24, batch_groups=8) if stream else Options()
    return replay(made_up(lengths, seed=1), FleetPlan(PROFILE, 6), config, how)


def seconds(result: Result) -> float:
    return sum(step.makespan_s for step in result.steps)


def test_a_stream_that_works_in_batches_is_faster_with_repack() -> None:
    without = run("laminar_repack", "placement.options.slowdown=0.0")
    repacked = run("laminar_repack")
    assert sum(step.moves for step in without.steps) == 0
    assert sum(step.moves for step in repacked.steps) > 0
    assert seconds(repacked) < 0.97 * seconds(without)


def test_a_barrier_is_as_fast_as_by_default() -> None:
    default = seconds(run("sticky_least_inflight", stream=False))
    assert seconds(run("laminar_repack", stream=False)) == pytest.approx(default, rel=0.05)
