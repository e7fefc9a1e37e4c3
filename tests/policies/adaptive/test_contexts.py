import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.agents_workload import agents
from support.controllers import steered_by
from support.observations import observation, replica_table, trajectory_table
from support.steered_replay import steered

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.world import World
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.mechanisms.simulated.profile import load_profile
from steersman.policies.adaptive.contexts import LEAST_WRITTEN, MOST_GROWTH, Contexts
from steersman.policies.placement.adaptive import Adaptive

R = Phase.RUNNING


def seen(turns: int = 1, in_batch: int = 2, written: int = 200, **columns: Any) -> Observation:
    """Four with prompts of 100 and `written` tokens, `in_batch` in the batch; those that are hold
    1300 tokens each."""
    table = trajectory_table(
        [R] * 4, replica_row=[0] * 4, generated_tokens=[written] * 4, turns=[turns] * 4
    )
    usage = {"kv_capacity_tokens": [26_000], "kv_cache_usage": [0.05 * in_batch]}
    return observation(table, replica_table(1, running=[in_batch], **{**usage, **columns}))


def learned(observation_: Observation, ticks: int = 200) -> tuple[float, float]:
    contexts = Contexts()
    for _ in range(ticks):
        contexts.learn(observation_)
    return contexts.growth, contexts.stretch


def test_growth_and_stretch_are_what_the_engines_report() -> None:
    """(1300 - 100) / 200 tokens per token written; 4 in flight for 2 in the batch."""
    assert learned(seen()) == pytest.approx((6.0, 2.0))


def test_a_tick_changes_a_tenth() -> None:
    assert learned(seen(), 1) == pytest.approx((1.5, 1.1))


@pytest.mark.parametrize(
    "told",
    [seen(turns=0), seen(in_batch=0), seen(written=int(LEAST_WRITTEN) - 1)],
    ids=["no turns", "nobody in the batch", "too little written"],
)
def test_nothing_is_learned_where_nothing_can_be_told(told: Observation) -> None:
    assert learned(told) == (1.0, 1.0)


def test_an_engines_queue_is_no_tool_and_an_unknown_cache_no_growth() -> None:
    assert learned(seen(waiting=[1])) == pytest.approx((6.0, 1.0))
    assert learned(seen(kv_capacity_tokens=[0])) == pytest.approx((1.0, 2.0))


def test_what_is_learned_is_bounded() -> None:
    assert learned(seen(kv_cache_usage=[1e4]))[0] == pytest.approx(MOST_GROWTH)
    assert learned(seen(in_batch=4, kv_cache_usage=[0.0])) == (1.0, 1.0)
    dead = seen(alive=[False])
    assert learned(dead) == (1.0, 1.0)


def test_a_context_is_the_prompt_and_what_came_of_the_tokens_written() -> None:
    contexts = Contexts(growth=3.0)
    assert contexts.now(seen()).tolist() == [700.0] * 4


def test_a_state_that_was_saved_goes_on_the_same() -> None:
    contexts = Contexts()
    contexts.learn(seen())
    again = Contexts.from_state(json.loads(json.dumps(contexts.state_dict(), allow_nan=False)))
    assert again == contexts


@pytest.mark.parametrize(("extra", "wait_s"), [(300, 1.0), (900, 2.0)])
def test_of_agents_both_are_learned_within_a_fifth(extra: int, wait_s: float) -> None:
    """48 at once, each with 40 turns of 60 tokens and 39 waits between them."""
    profile = replace(load_profile("qwen3-8b-h100-tp1"), kv_capacity_tokens=2_000_000)
    workload = agents(np.full(12, 40), 4, written=60, extra=extra, wait_s=wait_s)
    policy, learned_ = Adaptive(), list[tuple[float, float]]()

    def look(world: World) -> None:
        learned_.append((policy._contexts.growth, policy._contexts.stretch))

    (taken_s,) = steered(workload, FleetPlan(profile, 2), steered_by(policy), after_tick=look)
    growth, stretch = np.median(learned_[len(learned_) // 3 :], axis=0)
    assert growth == pytest.approx(1 + extra / 60, rel=0.2)
    assert stretch == pytest.approx(taken_s / (taken_s - 39 * wait_s), rel=0.2)
