import json
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from support.batches import DEFAULT, FLEET, GROUPS, SEEDS, answers, play, workload
from support.observations import (
    ended_table,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.controller.replay.run import Options
from steersman.controller.replay.turns import Turns
from steersman.controller.replay.workload import Workload
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Objective, Observation, RewardTable, TrainerSignal
from steersman.policies.placement import staleness_admission
from steersman.policies.placement.staleness_admission import StalenessAdmission

STREAM = Options(inflight_groups=24, batch_groups=4)
BATCH, MAX_LAG = 4, 1


def at(
    waiting: list[int], version: int = 0, done: list[int] | None = None, degenerate: int = 2
) -> Observation:
    """Groups of two that wait; those `done` have ended, all alike where divisible."""
    signal = TrainerSignal(
        step=version,
        weight_version=version,
        max_lag=MAX_LAG,
        objective=Objective.STREAM,
        groups_wanted=BATCH,
    )
    rows = np.repeat(waiting, 2)
    table = trajectory_table(
        [Phase.QUEUED] * len(rows),
        2,
        trajectory_id=2 * rows + np.tile([0, 1], len(waiting)),
    )
    over = np.repeat(done or [], 2).astype(np.int64)
    second = np.tile([0.0, 1.0], len(over) // 2)
    reward = np.where(over % degenerate == 0, 1.0, second)
    return observation(
        table,
        replica_table(2),
        trainer=signal,
        groups=group_table(len(waiting), group_id=waiting, size=[2] * len(waiting)),
        ended=ended_table([9] * len(over), group_id=over),
        rewarded=RewardTable(
            2 * over + np.tile([0, 1], len(over) // 2),
            over,
            over,
            np.full(len(over), 2),
            reward,
            0 * over,
        ),
    )


def begin(policy: StalenessAdmission, now: Observation) -> list[int]:
    """Ids of the groups that are placed."""
    decisions = policy.decide(now, Forecast.unknown(now), np.random.default_rng(0))
    return sorted({d.trajectory_id // 2 for d in decisions})


def trained_on(policy: StalenessAdmission, ticks: int = 40) -> int:
    """Groups that a trainer which drops degenerate ones gets; what begins ends at the next tick."""
    waiting, done, kept = list(range(16)), list[int](), 0
    for _ in range(ticks):
        now = at(waiting, version=kept // BATCH, done=done)
        done = begin(policy, now)
        kept += sum(group % 2 for group in done)
        fresh = range(max(waiting) + 1, max(waiting) + 1 + len(done))
        waiting = [group for group in waiting if group not in done] + [*fresh]
    return kept


def test_as_many_groups_begin_as_the_lag_bound_and_the_version_allow() -> None:
    policy = StalenessAdmission()
    assert begin(policy, at(list(range(20)))) == list(range(8))
    assert begin(policy, at(list(range(8, 20)), done=list(range(8)))) == []
    assert begin(policy, at(list(range(8, 20)), version=1)) == [8, 9, 10, 11]


def test_no_more_groups_run_at_once_than_is_told() -> None:
    assert begin(StalenessAdmission(max_concurrent=3), at(list(range(20)))) == [0, 1, 2]


def test_a_filtered_group_that_stays_accepted_ends_in_a_deadlock() -> None:
    assert trained_on(StalenessAdmission(filtered="none"), 40) == trained_on(
        StalenessAdmission(filtered="none"), 80
    )
    assert trained_on(StalenessAdmission(filtered="degenerate"), 80) > 80


def told_of(now: Observation, filtered: int) -> Observation:
    return replace(now, trainer=replace(now.trainer, groups_filtered=filtered))


@pytest.mark.parametrize("option", ["none", "degenerate"])
def test_groups_that_are_told_to_be_filtered_are_not_counted_whatever_their_rewards(
    option: Literal["none", "degenerate"],
) -> None:
    policy = StalenessAdmission(filtered=option)
    begin(policy, told_of(at(list(range(20))), 0))
    assert begin(policy, told_of(at(list(range(8, 20)), done=list(range(8))), 3)) == [8, 9, 10]
    assert begin(policy, told_of(at(list(range(11, 20)), done=[8, 9, 10]), 3)) == []


def test_another_session_tells_from_0_what_it_filtered() -> None:
    saved, restored = StalenessAdmission(), StalenessAdmission()
    begin(saved, told_of(at(list(range(8))), 0))
    begin(saved, told_of(at([99], version=1, done=list(range(8))), 3))
    restored.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    now = at(list(range(100, 140)), version=2)
    assert begin(restored, told_of(now, 0)) == begin(saved, told_of(now, 3))


def test_a_complete_group_that_gets_more_samples_is_accepted_once() -> None:
    policy = StalenessAdmission()
    begin(policy, at(list(range(8))))
    begin(policy, at(list(range(6, 8)), done=list(range(6))))
    begin(policy, at([2, *range(6, 8)]))  # it runs again
    begin(policy, at(list(range(6, 8)), done=[2]))
    begin(policy, at(list(range(8, 20)), done=[6, 7]))
    assert policy.state_dict()["accepted"] == 8


def test_a_run_that_goes_on_has_accepted_what_was_trained_on() -> None:
    assert begin(StalenessAdmission(), at(list(range(40)), version=10)) == list(range(8))


def test_a_restored_state_lets_no_more_begin_than_the_one_that_was_saved() -> None:
    saved, restored = StalenessAdmission(), StalenessAdmission()
    begin(saved, at(list(range(8))))
    begin(saved, at([99], version=1, done=list(range(8))))
    restored.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    now = at(list(range(100, 120)), version=1)
    assert begin(restored, now) == begin(saved, now)


def test_a_barrier_is_not_gated() -> None:
    now = at(list(range(20)))
    barrier = replace(now.trainer, objective=Objective.BARRIER)
    assert begin(StalenessAdmission(), replace(now, trainer=barrier)) == list(range(20))


def expired(policy: str, asked: Workload) -> int:
    """Samples of a stream that exceed a lag of one version and are replaced."""
    result = play(policy, asked, FLEET, STREAM, "max_lag=1")
    assert answers(result) == asked.trajectories
    return sum(step.expired for step in result.steps)


def in_order(asked: Workload) -> Workload:
    """The same with each group a little longer than the one before it."""
    steps = []
    for step in asked.steps:
        length = 40 + 4 * (GROUPS * step.step + step.group_row)
        steps.append(replace(step, length=length, turns=Turns.single(length)))
    return replace(asked, steps=steps)


def test_where_groups_end_in_the_order_they_began_none_exceeds_the_lag_bound() -> None:
    asked = in_order(workload(0))
    assert expired("staleness_admission", asked) == 0
    assert expired(DEFAULT, asked) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_long_ones_may_exceed_the_lag_bound_but_few_do(seed: int) -> None:
    asked = workload(seed)
    gated, free = expired("staleness_admission", asked), expired(DEFAULT, asked)
    assert 0 < gated < 0.2 * free


def test_groups_whose_rewards_never_all_come_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staleness_admission, "MOST_AWAITED", 5)
    policy = StalenessAdmission(filtered="degenerate")
    for group in range(20):
        now = at([99], done=[group])
        some = vars(now.rewarded).items()
        half = RewardTable(**{name: column[:1] for name, column in some})
        begin(policy, replace(now, rewarded=half))
    assert [group for group, *_ in policy.state_dict()["rewards"]] == [15, 16, 17, 18, 19]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_concurrent is -1"):
        StalenessAdmission(max_concurrent=-1)
    with pytest.raises(InvalidInputError, match="valid: none, degenerate"):
        StalenessAdmission(filtered="all")  # type: ignore[arg-type]
