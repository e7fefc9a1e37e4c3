"""StaleFlow: where throughput rises most; oldest versions first; what only waits is taken back."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.observations import (
    forecast_of,
    observation,
    random_observation,
    replica_table,
    trajectory_table,
)

from steersman.controller.config import load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Result, replay
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Ints, Observation, TrainerSignal
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.policies.decision import Action, Decision, place
from steersman.policies.placement import stale_flow
from steersman.policies.placement._throughput import Flow
from steersman.policies.placement.stale_flow import StaleFlow

Q, R, LEAVING = Phase.QUEUED, Phase.RUNNING, Phase.LEAVING
PROFILE = HardwareProfile(
    name="toy", gpu="none", model="none", tensor_parallel=1, fixed_s=0.01, sequence_s=0.0005,
    token_s=1e-8, prefill_token_s=2e-5, kv_capacity_tokens=0, max_num_seqs=64,
)  # fmt: skip


def decide(
    policy: StaleFlow, seen: Observation, fixed_s: list[float], per_sequence_s: float = 0.001
) -> list[Decision]:
    forecast = forecast_of(seen, [100.0] * len(seen.trajectories), per_sequence_s=per_sequence_s)
    throughput = replace(forecast.throughput, fixed_s=np.array(fixed_s))
    forecast = replace(forecast, throughput=throughput)
    return policy.decide(seen, forecast, np.random.default_rng(0))


def fleet(phase: list[int], replicas: dict[str, Any], **columns: Any) -> Observation:
    trainer = columns.pop("trainer", TrainerSignal())
    table = trajectory_table(phase, **columns)
    return observation(table, replica_table(len(replicas["waiting"]), **replicas), trainer=trainer)


def waiting(count: int, replicas: int, **columns: Any) -> Observation:
    return fleet([Q] * count, {"waiting": [0] * replicas}, **columns)


def targets(decisions: list[Decision]) -> list[str]:
    return [d.replica for d in decisions]


def test_each_goes_where_throughput_rises_most() -> None:
    """The first alone: 1 / 6 ms on r1 against 1 / 11 ms.  Then r1 offers 119, 89, 69 and 56 more,
    r0 76, 64 and 55: the fifth finds r0 ahead."""
    decisions = decide(StaleFlow(), waiting(6, 2), [0.010, 0.005])
    assert targets(decisions) == ["r1", "r1", "r0", "r1", "r0", "r1"]


def test_it_waits_where_no_replica_offers_the_wanted_share_of_the_ideal() -> None:
    """10 ms / (11, 12, 13 ms): of the ideal 91 tokens/s the third still adds 70 %, the fifth 52."""
    assert len(decide(StaleFlow(mu=0.7), waiting(9, 1), [0.01])) == 3
    assert len(decide(StaleFlow(mu=0.5), waiting(9, 1), [0.01])) == 5


def test_an_idle_fleet_takes_something_whatever_is_wanted() -> None:
    assert len(decide(StaleFlow(mu=1.0), waiting(4, 2), [0.01, 0.01])) == 2


def test_the_oldest_weight_version_goes_first_and_what_has_none_last() -> None:
    seen = waiting(4, 1, oldest_weight_version=[-1, 4, 3, 4], queued_s=[0.0, 9.0, 9.0, 5.0])
    assert [d.trajectory_id for d in decide(StaleFlow(), seen, [0.01])] == [2, 3, 1, 0]


def test_a_full_engine_or_one_with_a_queue_gets_nothing() -> None:
    full = {"waiting": [0, 1], "max_num_seqs": [1, 8]}
    seen = fleet([R, R, Q], full, replica_row=[0, 1, -1])
    assert decide(StaleFlow(), seen, [0.01, 0.01]) == []
    small = {"waiting": [0, 0], "kv_capacity_tokens": [150, 300]}
    seen = fleet([R, R, Q], small, replica_row=[0, 1, -1])
    kv = np.array(small["kv_capacity_tokens"], dtype=np.float64)
    forecast = forecast_of(seen, [100.0] * 3)
    forecast = replace(forecast, throughput=replace(forecast.throughput, kv_capacity_tokens=kv))
    assert targets(StaleFlow().decide(seen, forecast, np.random.default_rng(0))) == ["r1"]


def test_what_is_on_its_way_counts_where_it_goes() -> None:
    """Two leave r0 for r1: the snapshot's r1 is idle, the speculative state's is not."""
    seen = fleet([LEAVING, LEAVING, Q], {"waiting": [0, 0]}, replica_row=[0, 0, -1],
                 target_row=[1, 1, -1])  # fmt: skip
    assert targets(decide(StaleFlow(), seen, [0.01, 0.01])) == ["r0"]


@pytest.mark.parametrize(("max_lag", "target"), [(1, "r1"), (2, "r0")])
def test_a_replica_whose_weights_are_beyond_the_lag_bound_gets_nothing(
    max_lag: int, target: str
) -> None:
    trainer = TrainerSignal(weight_version=5, max_lag=max_lag)
    versions = {"waiting": [0, 0], "weight_version": [3, 4]}
    seen = fleet([R, Q], versions, replica_row=[1, -1], trainer=trainer)
    assert targets(decide(StaleFlow(), seen, [0.01, 0.01])) == [target]


def test_what_waits_in_an_engine_beyond_the_limit_goes_elsewhere_the_last_placed_first() -> None:
    placed_s = [900.0, 930.0, 920.0, 910.0]
    seen = fleet([R] * 4, {"waiting": [2, 0]}, replica_row=[0] * 4, placed_s=placed_s)
    moves = decide(StaleFlow(phi_wait=1, psi=1.0), seen, [0.01, 0.01])
    assert [(m.action, m.trajectory_id, m.replica) for m in moves] == [(Action.MIGRATE, 1, "r1")]
    assert decide(StaleFlow(phi_wait=2, psi=1.0), seen, [0.01, 0.01]) == []


def test_a_gap_in_throughput_is_closed_the_smallest_contexts_first() -> None:
    tokens = [900, 100, 500, 300]
    seen = fleet([R] * 4, {"waiting": [0, 0]}, replica_row=[0] * 4, generated_tokens=tokens)
    moves = decide(StaleFlow(psi=0.3), seen, [0.01, 0.01])
    assert [(m.action, m.trajectory_id, m.replica) for m in moves] == [
        (Action.MIGRATE, 1, "r1"),
        (Action.MIGRATE, 3, "r1"),
    ]


def test_level_replicas_and_what_has_just_moved_are_left_alone() -> None:
    level = fleet([R] * 4, {"waiting": [0, 0]}, replica_row=[0, 1, 0, 1])
    assert decide(StaleFlow(), level, [0.01, 0.01]) == []
    moved = fleet([R] * 4, {"waiting": [0, 0]}, replica_row=[0] * 4, moved_s=[995.0] * 4)
    assert decide(StaleFlow(), moved, [0.01, 0.01]) == []


def test_an_overfull_replica_sends_nothing_to_one_that_is_dead_or_full() -> None:
    """Throughput would rise where one leaves, as one slot serves all three in turn."""
    full = {"waiting": [0, 0, 0], "max_num_seqs": [1] * 3, "alive": [False, True, True]}
    seen = fleet([R] * 8, full, replica_row=[1] * 7 + [2])
    assert decide(StaleFlow(psi=0.1), seen, [0.001] * 3) == []


@pytest.mark.parametrize(
    ("waiting", "policy"),
    [([0, 0, 0], StaleFlow(max_moves=1)), ([1, 1, 0], StaleFlow(phi_wait=0, psi=1.0, max_moves=1))],
    ids=["gap", "queue"],
)
def test_of_replicas_in_the_same_state_the_first_by_name_sends(
    waiting: list[int], policy: StaleFlow
) -> None:
    """Its row is the second."""
    replicas = {"waiting": waiting, "names": ("r1", "r0", "r2")}
    seen = fleet([R] * 8, replicas, replica_row=[0, 1] * 4)
    (move,) = decide(policy, seen, [0.01] * 3)
    assert (move.replica, seen.trajectories.replica_row[move.row]) == ("r2", 1)


class OneByOne(StaleFlow):
    """Routing by the arrays of `Flow`, one after the other."""

    def _route(self, observation: Observation, flow: Flow) -> list[Decision]:
        t, decisions = observation.trajectories, []

        def turn(row: int) -> tuple[bool, int, float, int]:
            version = int(t.oldest_weight_version[row])
            return version < 0, version, float(t.queued_s[row]), row

        for row in sorted(observation.queued.tolist(), key=turn):
            target, rise = flow.best(int(flow.context[row]), self.mu)
            if target < 0:
                break
            flow._change(target, 1, int(flow.context[row]))
            why = f"adds {rise:.3g} tokens/s there, the most"
            decisions.append(place(observation, row, target, stale_flow.NAME, why))
        return decisions


def best_move(flow: Flow, rows: Ints, replica_row: Ints) -> tuple[int, int] | None:
    """Every source's first row against every replica, by a state of its own."""
    best, gain = None, 0.0
    names = np.argsort(flow.rank).tolist()
    for source in (r for r in names if r in replica_row[rows]):
        row = int(rows[replica_row[rows] == source][0])
        tokens = int(flow.context[row])
        rise = flow.rise(tokens)
        target = max((r for r in names if r != source), key=lambda r: rise[r])
        fall = flow._now[source] - flow._rate(flow.count - 1, flow.kv - tokens)[source]
        if rise[target] > 0 and rise[target] - fall > gain + 1e-9:
            best, gain = (row, target), float(rise[target] - fall)
    return best


def random_rates(rng: np.random.Generator, seen: Observation, kv: int) -> Forecast:
    """Some replicas alike, so that there are ties; a knee; capacities up to `kv`, 0: unknown."""
    r, forecast = len(seen.replicas), forecast_of(seen, [100.0] * len(seen.trajectories))
    return replace(
        forecast,
        throughput=replace(
            forecast.throughput,
            fixed_s=rng.choice([0.005, 0.01, 0.02], r),
            sequence_s=rng.choice([0.0001, 0.0003], r),
            token_s=rng.choice([0.0, 1e-8], r),
            knee_s=rng.choice([0.0, 0.05], r),
            kv_capacity_tokens=np.floor(rng.uniform(0.5, 1.0, r) * kv) * (rng.random(r) < 0.8),
        ),
    )


@pytest.mark.parametrize(("slots", "kv"), [(2, 0), (64, 0), (64, 60_000), (16, 9_000), (16, 900)])
def test_compiled_routing_decides_as_plain_python_does(
    slots: int, kv: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = Counter[Action]()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        weights = (0.88, 0.04, 0.01, 0.02, 0.05) if seed % 2 else (0.1, 0.7, 0.1, 0.0, 0.1)
        seen = random_observation(rng, 300, 12, weights=weights, slots=slots, alive_share=0.8)
        versions = rng.integers(3, 6, 12)
        seen = replace(seen, replicas=replace(seen.replicas, weight_version=versions))
        forecast = random_rates(rng, seen, kv)
        options = {"mu": float(rng.choice([0.02, 0.5])), "rest_s": 0.0, "max_moves": 16}
        ours = StaleFlow(**options).decide(seen, forecast, rng)
        with monkeypatch.context() as patch:
            patch.setattr(stale_flow, "_best_move", best_move)
            assert ours == OneByOne(**options).decide(seen, forecast, rng)
        decided.update(d.action for d in ours)
    assert min(decided[Action.PLACE], decided[Action.MIGRATE]) > 10


def run(policy: str, *options: str, speeds: tuple[float, ...]) -> Result:
    given = made_up(Lengths(steps=2, groups=16, p90_over_p50=3.0, median_tokens=600), seed=0)
    config = load_config(None, [f"placement.name={policy}", "tick_s=1.0", *options], environ={})
    return replay(given, FleetPlan(PROFILE, len(speeds), speeds=speeds), config)


def seconds(result: Result) -> float:
    return sum(step.makespan_s for step in result.steps)


def test_mixed_replicas_share_work_better_than_by_requests_in_flight() -> None:
    """Two replicas four times as fast as the others; alike ones are no slower than by default."""
    mixed, alike = (2.0, 2.0, 0.5, 0.5), (1.0,) * 4
    default = seconds(run("sticky_least_inflight", speeds=mixed))
    assert seconds(run("stale_flow", speeds=mixed)) < 0.6 * default
    unmoved = seconds(run("stale_flow", "placement.options.psi=1.0", speeds=mixed))
    assert unmoved < 0.95 * default  # routing alone
    default = seconds(run("sticky_least_inflight", speeds=alike))
    assert seconds(run("stale_flow", speeds=alike)) < 1.03 * default
