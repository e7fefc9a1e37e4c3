from dataclasses import replace

import numpy as np
import pytest
from support.batches import DEFAULT, WHOLE_STEPS, group_ends, play, seconds, tokens, workload
from support.observations import group_table, observation, replica_table, trajectory_table
from support.small_replay import PROFILE

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Result
from steersman.controller.replay.workload import Workload
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.policies.placement.rollout_pipe import RolloutPipe

SEEDS = range(4)
SCARCE = FleetPlan(replace(PROFILE, max_num_seqs=4), 4)
"""Slots for a sixth of a step."""


def pair(asked: Workload) -> tuple[Result, Result]:
    names = (DEFAULT, "rollout_pipe")
    base, ours = (play(name, asked, SCARCE, WHOLE_STEPS) for name in names)
    return base, ours


def test_complete_groups_come_earlier_and_the_last_one_not_later() -> None:
    pairs = [pair(workload(seed, steps=1, groups=24)) for seed in SEEDS]
    earlier = [group_ends(ours).mean() / group_ends(base).mean() for base, ours in pairs]
    longer = [seconds(ours) / seconds(base) for base, ours in pairs]
    assert np.mean(earlier) < 0.93
    assert np.mean(longer) < 1.0
    assert [tokens(ours) for _, ours in pairs] == [tokens(base) for base, _ in pairs]


def test_the_group_with_the_fewest_samples_left_begins_first_and_older_steps_before_it() -> None:
    q, e = Phase.QUEUED, Phase.ENDED
    table = trajectory_table([q, q, q, e, q, q], group_size=2)
    groups = group_table(3, size=[2, 2, 2], ended=[0, 1, 0], step=[5, 5, 4])
    now = observation(table, replica_table(1, max_num_seqs=[2]), groups=groups)
    policy = RolloutPipe(backlog=1)
    decisions = policy.decide(now, Forecast.unknown(now), np.random.default_rng(0))
    assert [d.trajectory_id for d in decisions] == [4, 5, 2]


def test_a_negative_backlog_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="backlog is -1"):
        RolloutPipe(backlog=-1)
