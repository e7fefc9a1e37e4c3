"""What one tick asks of whom, and in which order."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.controllers import steered_by
from support.observations import observation, random_observation, replica_table, trajectory_table

from steersman.controller.config import load_config
from steersman.controller.core import Controller, Estimators, Stack
from steersman.controller.guard import feasible, guard
from steersman.controller.plugins import names
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, DraftDecision

SEEN = observation(
    trajectory_table([Phase.RUNNING] * 2, replica_row=[0, 1]),
    replica_table(2, running=np.array([1, 1]), max_draft_tokens=np.array([8, 8])),
)


class Plain(Stateless):
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        self.asked.append("decide")
        return []


class Joint(Plain):
    """Drafts as many tokens as its generator says, and too many on the second replica."""

    def draft(self, observation: Observation, forecast: Forecast, rng: Any) -> list[DraftDecision]:
        self.asked.append("draft")
        first, second = observation.replicas.names
        drawn = int(rng.integers(1, 8))
        return [DraftDecision(first, drawn, "joint", ""), DraftDecision(second, 99, "joint", "")]


class Weighing(Plain):
    """Compares two plans in every other tick."""

    def alternatives(self) -> Mapping[str, float]:
        return {"default": 160.2, "isolate": 150.1} if len(self.asked) % 2 else {}


def test_a_placement_policy_that_drafts_is_asked_after_its_decisions_and_is_checked() -> None:
    policy = Joint()
    drafts = steered_by(policy).decide(SEEN).drafts
    assert policy.asked == ["decide", "draft"]
    assert [d.replica for d in drafts] == [SEEN.replicas.names[0]]


def test_a_speculation_policy_that_the_user_chose_has_the_word() -> None:
    policy = Joint()
    chosen = steered_by(policy, "speculation.name=batch_threshold").decide(SEEN).drafts
    assert policy.asked == ["decide"]
    assert {d.policy for d in chosen} == {"batch_threshold"}


def test_a_placement_policy_that_does_not_draft_changes_nothing() -> None:
    assert steered_by(Plain()).decide(SEEN).drafts == []


def test_same_seed_and_observation_same_drafts() -> None:
    one, same = (steered_by(Joint(), "seed=5").decide(SEEN).drafts for _ in range(2))
    assert one == same


@pytest.mark.parametrize("placement", names("policies.placement"))
def test_the_order_in_which_policies_are_asked_and_draw_is_fixed(placement: str) -> None:
    said = (
        f"placement.name={placement}",
        "stopping.name=espo",
        "stopping.options={warmup_steps=1, keep_probability=0.5}",
        "speculation.name=batch_threshold",
    )
    config = load_config(None, said, environ={})
    steering = Controller.from_config(config)
    estimators, stack = Estimators.from_config(config), Stack.from_config(config)
    draws, drafts = np.random.default_rng(3), 0
    for tick in range(4):
        seen = replace(random_observation(draws, 60, 4, weight_version=5 + tick), tick=tick)
        seen = replace(seen, replicas=replace(seen.replicas, max_draft_tokens=np.full(4, 8)))
        verdict = steering.decide(seen)
        forecast = estimators.forecast(seen)
        rng = np.random.default_rng((config.seed, tick))
        proposed = stack.placement.decide(seen, forecast, rng)
        proposed = [*proposed, *stack.stopping.decide(seen, forecast, rng)]
        assert (verdict.decisions, verdict.dropped) == guard(seen, proposed, config.guard)
        assert verdict.drafts == feasible(seen, stack.speculation.decide(seen, forecast, rng))
        drafts += len(verdict.drafts)
    assert drafts


def test_what_was_compared_comes_with_the_verdict_and_only_where_something_was() -> None:
    steering = steered_by(Weighing())
    first, second = (steering.decide(SEEN).alternatives for _ in range(2))
    assert first == {"default": 160.2, "isolate": 150.1}
    assert second == {}
    assert steered_by(Plain()).decide(SEEN).alternatives == {}


def test_a_coin_of_a_placement_policy_passes_through_the_guard() -> None:
    class Coin(Stateless):
        def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
            ids = observation.trajectories.trajectory_id.tolist()
            sides = zip(ids, (Action.STOP, Action.CONTINUE), strict=True)
            return [Decision(i, side, "coin", "", propensity=0.5) for i, side in sides]

    verdict = steered_by(Coin()).decide(SEEN)
    assert [d.action for d in verdict.decisions] == [Action.STOP, Action.CONTINUE]
