"""What every placement policy promises, checked for each file of the folder."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.observations import ended_table, known, random_observation

from steersman.controller.plugins import load, names
from steersman.estimators.forecast import Forecast
from steersman.estimators.length import SurvivalLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Objective, Observation
from steersman.estimators.throughput import IterationTime
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action, Decision

POLICIES = names("policies.placement")
every_policy = pytest.mark.parametrize("name", POLICIES)
TIES_AT_RANDOM = ("sticky_least_inflight", "adaptive")
"""The trainer's default, and what does the same where it knows nothing better."""
MAY_ACT_ON = {
    Action.PLACE: Phase.QUEUED,
    Action.MIGRATE: Phase.RUNNING,
    Action.DEFER: Phase.RUNNING,
}


def build(name: str) -> PlacementPolicy:
    policy: PlacementPolicy = load("policies.placement", name)()
    return policy


def forecast_for(seen: Observation) -> Forecast:
    length = SurvivalLength()
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(6.5, 1.0, 500)).astype(np.int64)
    length.observe(replace(seen, ended=ended_table(lengths)))
    return known(seen, length, IterationTime())


def ask(policy: PlacementPolicy, seen: Observation, seed: int = 0) -> list[Decision]:
    return policy.decide(seen, forecast_for(seen), np.random.default_rng(seed))


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Anything: full or empty fleets, dead replicas, busy or quiet queues, both objectives."""
    weights = draw(st.sampled_from([(0.2,) * 5, (0.9, 0.1, 0, 0, 0), (0, 0.3, 0.05, 0.05, 0.6)]))
    return random_observation(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        trajectories=draw(st.integers(0, 120)),
        replicas=draw(st.integers(1, 6)),
        weights=weights,
        slots=draw(st.sampled_from([1, 8, 64])),
        alive_share=draw(st.sampled_from([0.0, 0.6, 1.0])),
        group_size=draw(st.sampled_from([1, 4])),
        objective=draw(st.sampled_from(list(Objective))),
        max_lag=draw(st.integers(0, 3)),
    )


@every_policy
@given(seen=observations(), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=60)
def test_decisions_are_legal(name: str, seen: Observation, seed: int) -> None:
    """One per trajectory, on a row that may be acted on, at a living replica, with a reason."""
    t, alive = seen.trajectories, dict(zip(seen.replicas.names, seen.replicas.alive, strict=True))
    decisions = ask(build(name), seen, seed)
    assert len({d.trajectory_id for d in decisions}) == len(decisions)
    for d in decisions:
        assert t.trajectory_id[d.row] == d.trajectory_id
        assert t.phase[d.row] == MAY_ACT_ON[d.action]
        assert d.action is Action.DEFER or alive[d.replica]
        assert d.action is not Action.MIGRATE or (
            seen.replicas.names.index(d.replica) != t.replica_row[d.row]
        )
        assert d.policy == name
        assert d.reason
        assert d.propensity == 1.0


def placed(seen: Observation, decisions: list[Decision]) -> Observation:
    """What is placed runs; then everything that runs has ended."""
    t = seen.trajectories
    phase = t.phase.copy()
    phase[[d.row for d in decisions if d.action is Action.PLACE]] = Phase.RUNNING
    phase = np.where(np.isin(phase, (Phase.RUNNING, Phase.LEAVING)), Phase.ENDED, phase)
    nowhere = np.full(len(t), NO_ROW)
    table = replace(t, phase=phase, replica_row=nowhere, target_row=nowhere)
    idle = replace(
        seen.replicas, running=0 * seen.replicas.running, waiting=0 * seen.replicas.waiting
    )
    return replace(seen, trajectories=table, replicas=idle, tick=seen.tick + 1)


@every_policy
@given(seen=observations())
@settings(deadline=None, max_examples=30)
def test_whatever_waits_is_placed_in_the_end_while_a_replica_lives(
    name: str, seen: Observation
) -> None:
    policy = build(name)
    if not seen.replicas.alive.any():
        assert not any(d.action is Action.PLACE for d in ask(policy, seen))
        return
    for _ in range(len(seen.trajectories) + 2):
        if not len(seen.queued):
            break
        seen = placed(seen, ask(policy, seen))
    assert not len(seen.queued)


@every_policy
@given(seen=observations(), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=20)
def test_the_same_observation_and_seed_give_the_same_decisions(
    name: str, seen: Observation, seed: int
) -> None:
    assert ask(build(name), seen, seed) == ask(build(name), seen, seed)


def with_replicas_permuted(seen: Observation, order: np.ndarray) -> Observation:
    """The same fleet with its rows in another order."""
    r, t = seen.replicas, seen.trajectories
    columns: dict[str, Any] = {}
    for column, value in vars(r).items():
        is_array = isinstance(value, np.ndarray)
        columns[column] = value[order] if is_array else tuple(value[i] for i in order)
    new_row = np.append(np.argsort(order), NO_ROW)
    table = replace(t, replica_row=new_row[t.replica_row], target_row=new_row[t.target_row])
    return replace(seen, replicas=type(r)(**columns), trajectories=table)


@pytest.mark.parametrize("name", [n for n in POLICIES if n not in TIES_AT_RANDOM])
@given(seen=observations(), data=st.data())
@settings(deadline=None, max_examples=30)
def test_the_order_of_the_replica_rows_does_not_matter(
    name: str, seen: Observation, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(seen.replicas)))))
    other = with_replicas_permuted(seen, order)
    first, second = ask(build(name), seen), ask(build(name), other)
    assert [(d.trajectory_id, d.action, d.replica) for d in first] == [
        (d.trajectory_id, d.action, d.replica) for d in second
    ]


@every_policy
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_what_a_policy_remembers_survives_json(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    earlier, later = random_observation(rng, 60, 4), random_observation(rng, 60, 4)
    first, second = build(name), build(name)
    ask(first, earlier)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert ask(first, later) == ask(second, later)
