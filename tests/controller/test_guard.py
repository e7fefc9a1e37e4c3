"""The guard lets through what is legal, timely and affordable, and says why it drops the rest."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.observations import observation, replica_table, trajectory_table

from steersman.controller.config import GuardConfig
from steersman.controller.guard import guard
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    AS_REPLICA,
    NO_ROW,
    ONLY_AS_REPLICA,
    Observation,
    TrainerSignal,
)
from steersman.policies.decision import Action, Decision

NOW_S = 100.0


def world(
    phase: Phase = Phase.RUNNING, trainer: TrainerSignal | None = None, **columns: Any
) -> Any:
    """Two trajectories of one phase and three replicas, of which the last is dead."""
    here = 0 if phase in (Phase.RUNNING, Phase.LEAVING) else NO_ROW
    trajectories = trajectory_table(
        [phase, phase],
        **{
            "replica_row": np.array([here, here]),
            "moved_s": np.full(2, -np.inf),
            "oldest_weight_version": np.array([0, 0]),
            **{name: np.array(column) for name, column in columns.items()},
        },
    )
    replicas = replica_table(3, alive=np.array([True, True, False]))
    return observation(trajectories, replicas, NOW_S, trainer=trainer or TrainerSignal(max_lag=1))


def decision(
    action: Action, seen: Observation, row: int = 0, target: int = 1, **more: Any
) -> Decision:
    return Decision(
        trajectory_id=int(seen.trajectories.trajectory_id[row]),
        action=action,
        policy="test",
        reason="",
        replica=seen.replicas.names[target],
        **more,
    )


def verdict(
    seen: Observation, *proposed: Decision, **config: Any
) -> tuple[list[Action], list[str]]:
    kept, dropped = guard(seen, list(proposed), GuardConfig(**config))
    return [d.action for d in kept], [d.why for d in dropped]


@pytest.mark.parametrize("action", [Action.MIGRATE, Action.ISOLATE, Action.RESTART, Action.STOP])
def test_a_running_trajectory_may_be_moved_restarted_or_stopped(action: Action) -> None:
    seen = world()
    assert verdict(seen, decision(action, seen)) == ([action], [])


@pytest.mark.parametrize("phase", [Phase.LEAVING, Phase.PARKED, Phase.ENDED])
@pytest.mark.parametrize("action", [Action.PLACE, Action.MIGRATE, Action.DEFER, Action.STOP])
def test_nothing_is_done_to_what_is_leaving_parked_or_ended(phase: Phase, action: Action) -> None:
    seen = world(phase)
    assert verdict(seen, decision(action, seen)) == ([], [f"it is {phase.name.lower()}"])


def test_prompt_actions_are_not_actions_on_trajectories() -> None:
    seen = world()
    assert "not an action on trajectories" in verdict(seen, decision(Action.ADMIT, seen))[1][0]


def test_a_dead_or_unknown_target_is_refused() -> None:
    seen = world()
    unknown = Decision(int(seen.trajectories.trajectory_id[0]), Action.MIGRATE, "test", "", "r99")
    assert "is not alive" in verdict(seen, decision(Action.MIGRATE, seen, target=2))[1][0]
    assert "is not alive" in verdict(seen, unknown)[1][0]


def test_an_unknown_trajectory_is_refused() -> None:
    seen = world()
    assert verdict(seen, Decision(10**9, Action.STOP, "test", "")) == ([], ["no such trajectory"])


def test_of_two_actions_on_one_trajectory_the_one_that_ends_work_is_heard() -> None:
    seen = world()
    kept, dropped = verdict(seen, decision(Action.MIGRATE, seen), decision(Action.STOP, seen))
    assert kept == [Action.STOP]
    assert dropped == ["another action for this trajectory comes first"]


def test_moves_are_bounded_per_tick_per_life_and_by_the_cool_down() -> None:
    seen = world()
    both = [decision(Action.MIGRATE, seen, row) for row in (0, 1)]
    assert verdict(seen, *both, max_moves_per_tick=1)[1] == ["the 1 moves of this tick are used up"]
    seen = world(moves=[4, 0])
    assert verdict(seen, decision(Action.MIGRATE, seen))[1] == ["it has been moved 4 times"]
    seen = world(moved_s=[NOW_S - 1.9, NOW_S - 2.1])
    both = [decision(Action.MIGRATE, seen, row) for row in (0, 1)]
    assert verdict(seen, *both) == ([Action.MIGRATE], ["it was moved a moment ago"])


def test_a_group_that_is_being_deferred_is_deferred_whole() -> None:
    seen = world(group_row=[0, 0])
    both = [decision(Action.DEFER, seen, row) for row in (0, 1)]
    assert verdict(seen, *both, max_moves_per_tick=1) == ([Action.DEFER, Action.DEFER], [])
    seen = world(group_row=[0, 1])
    both = [decision(Action.DEFER, seen, row) for row in (0, 1)]
    assert verdict(seen, *both, max_moves_per_tick=1)[0] == [Action.DEFER]


def test_placing_is_not_bounded_by_the_move_budget() -> None:
    seen = world(Phase.QUEUED)
    both = [decision(Action.PLACE, seen, row) for row in (0, 1)]
    assert verdict(seen, *both, max_moves_per_tick=0) == ([Action.PLACE, Action.PLACE], [])


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.QUEUED])
def test_a_deferral_must_keep_the_lag_bound_at_the_next_version(phase: Phase) -> None:
    for version, max_lag, legal in ((0, 1, True), (1, 1, False), (1, 2, True), (0, 0, False)):
        seen = world(phase, TrainerSignal(weight_version=version, max_lag=max_lag))
        kept, dropped = verdict(seen, decision(Action.DEFER, seen))
        assert (kept == [Action.DEFER]) == legal
        assert legal or f"lag {version + 1}; the bound is {max_lag}" in dropped[0]


def test_deferrals_and_restarts_are_bounded_per_trajectory() -> None:
    seen = world(deferred=[2, 1])
    kept, dropped = verdict(seen, *(decision(Action.DEFER, seen, row) for row in (0, 1)))
    assert (kept, dropped) == ([Action.DEFER], ["it has been deferred 2 times"])
    seen = world(restarts=[1, 0])
    kept, dropped = verdict(seen, *(decision(Action.RESTART, seen, row) for row in (0, 1)))
    assert (kept, dropped) == ([Action.RESTART], ["its slot has been restarted 1 times"])


def test_a_move_onto_a_replica_that_has_not_reported_for_long_is_refused() -> None:
    seen = world()
    replicas = replace(seen.replicas, metrics_age_s=np.array([0.0, 6.0, 0.0]))
    seen = replace(seen, replicas=replicas)
    assert "figures of" in verdict(seen, decision(Action.MIGRATE, seen))[1][0]
    assert verdict(seen, decision(Action.MIGRATE, seen), metrics_max_age_s=7.0)[1] == []


@pytest.mark.parametrize("bad", [{"propensity": 0.0}, {"gain_s": np.nan}, {"cost_s": np.inf}])
def test_figures_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    seen = world()
    assert "not a number that can be" in verdict(seen, decision(Action.STOP, seen, **bad))[1][0]


@pytest.mark.parametrize("phase", list(Phase))
def test_both_sides_of_a_coin_are_legal_in_the_same_phases(phase: Phase) -> None:
    seen = world(phase)
    passed = [
        bool(verdict(seen, decision(action, seen, propensity=0.5))[0])
        for action in (Action.STOP, Action.CONTINUE)
    ]
    assert passed == [phase in (Phase.RUNNING, Phase.QUEUED)] * 2


@pytest.mark.parametrize("share", [0.001, 0.049, 0.05, 0.3, 0.7, 0.95, 0.951, 0.999])
def test_a_coin_is_heard_whichever_way_it_falls_or_not_at_all(share: float) -> None:
    seen = world()
    spared = verdict(seen, decision(Action.CONTINUE, seen, propensity=share))
    stopped = verdict(seen, decision(Action.STOP, seen, propensity=1 - share))
    assert bool(spared[0]) == bool(stopped[0]) == (0.05 <= share <= 0.95)
    assert spared[1] == stopped[1]


def test_going_on_without_a_coin_is_no_decision_and_a_stop_by_a_rule_is_one() -> None:
    seen = world()
    assert "it goes on anyway" in verdict(seen, decision(Action.CONTINUE, seen))[1][0]
    assert verdict(seen, decision(Action.STOP, seen)) == ([Action.STOP], [])


@pytest.mark.parametrize("other", [a for a in Action if a not in (Action.STOP, Action.CONTINUE)])
def test_no_other_action_hides_how_a_coin_fell(other: Action) -> None:
    seen = world()
    for side in (Action.STOP, Action.CONTINUE):
        both = decision(other, seen), decision(side, seen, propensity=0.5)
        assert verdict(seen, *both)[0] == [side]


def test_of_two_coins_on_one_trajectory_the_first_counts_and_only_once() -> None:
    seen = world()
    for first in (Action.STOP, Action.CONTINUE):
        for second in (Action.STOP, Action.CONTINUE):
            both = (decision(side, seen, propensity=0.5) for side in (first, second))
            assert verdict(seen, *both)[0] == [first]


def drafting(now: int = AS_REPLICA, phase: Phase = Phase.RUNNING) -> Observation:
    seen = world(phase, draft_tokens=[now, now])
    most = replace(seen.replicas, max_draft_tokens=np.array([8, 0, 8]))
    return replace(seen, replicas=most)


@pytest.mark.parametrize("tokens", [AS_REPLICA, 0, 8])
def test_a_running_trajectory_may_draft_what_its_replica_can(tokens: int) -> None:
    seen = drafting(now=3)
    asked = decision(Action.SPECULATE, seen, draft_tokens=tokens)
    assert verdict(seen, asked) == ([Action.SPECULATE], [])


@pytest.mark.parametrize("tokens", [-2, 9])
def test_what_a_replica_cannot_draft_is_refused(tokens: int) -> None:
    seen = drafting()
    asked = decision(Action.SPECULATE, seen, draft_tokens=tokens)
    assert verdict(seen, asked) == ([], [f"its replica can draft 0 to 8 tokens, not {tokens}"])


def test_drafting_as_before_and_where_only_replicas_can_be_told_is_refused() -> None:
    for now, why in ((4, "already"), (ONLY_AS_REPLICA, "single trajectories")):
        seen = drafting(now)
        kept, (objection,) = verdict(seen, decision(Action.SPECULATE, seen, draft_tokens=4))
        assert kept == []
        assert why in objection


def test_a_move_is_heard_before_what_is_drafted_and_takes_none_of_its_budget() -> None:
    seen = drafting()
    both = (
        decision(Action.SPECULATE, seen, draft_tokens=4),
        decision(Action.MIGRATE, seen),
        decision(Action.SPECULATE, seen, row=1, draft_tokens=4),
    )
    kept, dropped = verdict(seen, *both, max_moves_per_tick=1)
    assert kept == [Action.MIGRATE, Action.SPECULATE]
    assert dropped == ["another action for this trajectory comes first"]
