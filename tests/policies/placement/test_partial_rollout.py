from dataclasses import replace

import numpy as np
import pytest
from support.batches import (
    DEFAULT,
    SEEDS,
    TIGHT,
    answers,
    discarded,
    run,
    seconds,
    tokens,
)
from support.observations import group_table, observation, replica_table, trajectory_table
from support.small_replay import CAP

from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation, TrainerSignal
from steersman.policies.decision import Action
from steersman.policies.placement.partial_rollout import PartialRollout

BATCH = TrainerSignal(step=1, weight_version=1, max_lag=1, groups_wanted=2)


def seen(tokens_so_far: list[int], trainer: TrainerSignal = BATCH) -> Observation:
    """Running groups of one, a cap of 4096 tokens each."""
    n = len(tokens_so_far)
    table = trajectory_table(
        [Phase.RUNNING] * n,
        replica_row=[0] * n,
        generated_tokens=tokens_so_far,
        oldest_weight_version=[1] * n,
    )
    return observation(table, replica_table(1), trainer=trainer, groups=group_table(n))


def saved(policy: PartialRollout, now: Observation) -> list[int]:
    decisions = policy.decide(now, Forecast.unknown(now), np.random.default_rng(0))
    assert {d.action for d in decisions} <= {Action.DEFER}
    return sorted(d.trajectory_id for d in decisions)


def test_the_budget_is_counted_from_where_the_step_began() -> None:
    policy = PartialRollout(budget_share=0.25)
    assert saved(policy, seen([2000, 0, 0, 0])) == []
    assert saved(policy, seen([3023, 1023, 1, 1])) == []
    assert saved(policy, seen([3024, 1024, 1, 1])) == [0, 1]


def test_the_batch_comes_before_the_budget() -> None:
    policy = PartialRollout(budget_share=0.25)
    saved(policy, seen([0, 0, 0]))
    assert saved(policy, seen([1100, 1200, 1300])) == [2]


def test_a_trainer_that_needs_all_has_no_budget() -> None:
    policy, needs_all = PartialRollout(), replace(BATCH, groups_wanted=0)
    saved(policy, seen([0, 0, 0], needs_all))
    assert saved(policy, seen([4000] * 3, needs_all)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_strong_tail_ends_sooner_with_the_same_answers(seed: int) -> None:
    base, ours = run(DEFAULT, seed), run("partial_rollout", seed)
    assert (answers(ours), tokens(ours)) == (answers(base), tokens(base))
    assert discarded(ours) == 0
    assert seconds(ours) < 0.85 * seconds(base)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_enough_groups_to_spare_no_segment_exceeds_the_budget(seed: int) -> None:
    result = run("partial_rollout", seed, "placement.options.oversampling=4")
    first, attempts = result.steps[0], result.attempts
    own = attempts.start_s < first.start_s + first.makespan_s
    written = (attempts.last_token - attempts.first_token)[own]
    assert written.max() <= CAP / 4 + 20  # what is written in a tick


def test_scarce_memory_is_preempted_more_often() -> None:
    plan = FleetPlan(TIGHT, 2)
    base, ours = (
        sum(run(name, seed, plan=plan).preemptions for seed in SEEDS)
        for name in (DEFAULT, "partial_rollout")
    )
    assert ours > 10 * base


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="budget_share is 0"):
        PartialRollout(budget_share=0.0)
    with pytest.raises(InvalidInputError, match=r"oversampling is 0\.5"):
        PartialRollout(oversampling=0.5)
