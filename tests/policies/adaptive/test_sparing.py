"""Stragglers of groups that teach nothing: who is cancelled, when, and that weights undo it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.observations import (
    forecast_of,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)
from support.tailed_replay import DENSE_8B

from steersman.controller.config import GuardConfig, load_config
from steersman.controller.guard import guard
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.intervals import ENDINGS
from steersman.controller.replay.run import Result, replay
from steersman.controller.replay.workload import Asked, Workload
from steersman.controller.tournament.sample_banks import DriftingSamples
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    Floats,
    Normaliser,
    Objective,
    Observation,
    TrainerSignal,
)
from steersman.policies.adaptive.arms import FULL
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.outlook import Outlook
from steersman.policies.adaptive.sparing import LEAST_KEEP, MOST_KEEP, THRESHOLD, Coin, Sparing
from steersman.policies.decision import Action
from steersman.policies.placement.adaptive import Adaptive

Q, R, L, E, P = Phase.QUEUED, Phase.RUNNING, Phase.LEAVING, Phase.ENDED, Phase.PARKED
SIZE, GROUP = 4, 8
"""Of the groups made by hand, and of those of replays."""
BEGAN = TrainerSignal(step_started_s=990.0)
"""Ten seconds before the observation."""
SILENT = [E, E, E, R]
"""Phases of a group whose last member runs."""


def groups_of_failures(phase: Sequence[int], **columns: Any) -> Observation:
    """Groups of four on one replica; all that ended has failed."""
    ended = (np.reshape(phase, (-1, SIZE)) == E).sum(axis=1)
    n = len(ended)
    given = {
        "size": np.full(n, SIZE), "ended": ended, "rewarded": ended, "reward_sum": np.zeros(n),
        "reward_low": np.where(ended > 0, 0.0, np.inf),
        "reward_high": np.where(ended > 0, 0.0, -np.inf), **columns,
    }  # fmt: skip
    trainer = given.pop("trainer", BEGAN)
    on = np.where(np.isin(phase, (R, L)), 0, -1)
    target = np.where(np.isin(phase, L), 0, -1)
    table = trajectory_table(phase, SIZE, replica_row=on, target_row=target)
    return observation(table, replica_table(1), trainer=trainer, groups=group_table(n, **given))


def throw(
    sparing: Sparing,
    seen: Observation,
    value: float | Sequence[float] | Floats = 0.04,
    left: float | Sequence[float] | Floats = 1000.0,
    seed: int = 0,
    step_groups: int = 64,
) -> list[Coin]:
    """Coins; `value` per group and `left` tokens per row (10 ms each), or of all."""
    forecast = known(seen, value, left)
    outlook = Outlook.of(seen, forecast, Contexts())
    rng = np.random.default_rng(seed)
    return sparing.throw(seen, forecast, outlook, rng, step_groups, 0.05)


def known(seen: Observation, value: Any, left: Any) -> Forecast:
    """How long what runs will go on, and what its groups are worth."""
    forecast = forecast_of(seen, np.broadcast_to(left, len(seen.trajectories)).astype(float))
    worth = np.broadcast_to(value, len(seen.groups)).astype(float)
    return replace(forecast, success=replace(forecast.success, value=worth))


def test_the_straggler_of_a_group_of_failures_is_cancelled_by_a_coin_that_says_why() -> None:
    [coin] = throw(Sparing(), groups_of_failures(SILENT), 0.1)
    assert (coin.row, coin.keep) == (3, False)
    assert coin.propensity == pytest.approx(1 - 0.1 / THRESHOLD)
    assert "all 3 known rewards of its group are 0: 10% chance that it will teach" in coin.reason
    assert "cancelled by a coin that keeps with probability 0.20" in coin.reason
    assert 8 < coin.gain_s < 10  # of 11 s, unless the coin keeps it


def test_without_a_normaliser_the_reason_speaks_of_worth() -> None:
    seen = groups_of_failures(SILENT, trainer=replace(BEGAN, normaliser=Normaliser.NONE))
    [coin] = throw(Sparing(), seen)
    assert "expected to teach 4% of what a group can" in coin.reason


@pytest.mark.parametrize("value", [0.0, 0.01, 0.1, 0.3, 0.499])
def test_both_sides_have_the_probability_that_is_told(value: float) -> None:
    seen, n = groups_of_failures(SILENT), 400
    coins = [throw(Sparing(), seen, value, seed=seed)[0] for seed in range(n)]
    keep = float(np.clip(value / THRESHOLD, LEAST_KEEP, MOST_KEEP))
    for coin in coins:
        assert coin.propensity == pytest.approx(keep if coin.keep else 1 - keep)
        assert type(coin.row) is int
        assert type(coin.propensity) is float
        assert type(coin.gain_s) is float
    error = np.mean([coin.keep for coin in coins]) - keep
    assert abs(error) < 4 * np.sqrt(keep * (1 - keep) / n)


OTHERS: dict[str, dict[str, Any]] = {
    "worth finishing": {"value": THRESHOLD},
    "different rewards": {"reward_high": [1.0]},
    "a reward that is not known": {"rewarded": [2]},
    "one known reward": {"phase": [E, R, R, R]},
    "a member that waits": {"phase": [E, E, R, Q]},
    "a member on its way": {"phase": [E, E, R, L]},
    "a parked member": {"phase": [E, E, R, P]},
    "a stream": {"trainer": replace(BEGAN, objective=Objective.STREAM)},
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_groups_are_left_alone(why: str) -> None:
    columns = dict(OTHERS[why])
    phase, value = columns.pop("phase", SILENT), columns.pop("value", 0.04)
    assert not throw(Sparing(), groups_of_failures(phase, **columns), value)


def test_nobody_is_thrown_for_while_a_worthy_group_holds_the_step_up_as_long() -> None:
    seen = groups_of_failures(SILENT + SILENT)
    value = [0.04, 0.9]
    assert not throw(Sparing(), seen, value, left=[0, 0, 0, 1000, 0, 0, 0, 1000])
    assert not throw(Sparing(), seen, value, left=[0, 0, 0, 1000, 0, 0, 0, 200])
    assert throw(Sparing(), seen, value, left=[0, 0, 0, 1000, 0, 0, 0, 50])


def test_who_ends_before_the_others_anyway_is_not_thrown_for() -> None:
    seen = groups_of_failures(SILENT + SILENT + SILENT)
    left = [0, 0, 0, 40, 0, 0, 0, 1000, 0, 0, 0, 50]
    coins = throw(Sparing(), seen, [0.4, 0.04, 0.9], left, step_groups=3)
    assert [coin.row for coin in coins] == [7]


def test_a_group_is_not_given_up_for_less_than_it_is_worth() -> None:
    """It may cost 2 * 0.3 * (1 - 0.6) of the step's 10.6 s per group."""
    seen, left = groups_of_failures(SILENT), [0, 0, 0, 55]
    assert throw(Sparing(), seen, 0.3, left, step_groups=64)
    assert not throw(Sparing(), seen, 0.3, left, step_groups=2)


def test_stragglers_share_a_throw_and_who_is_likelier_to_be_kept_is_kept_with_others() -> None:
    seen, fell = groups_of_failures([E, E, R, R, *SILENT]), set()
    for seed in range(40):
        coins = throw(Sparing(), seen, [0.25, 0.1], seed=seed)
        assert [coin.row for coin in coins] == [2, 3, 7]
        assert coins[0].keep == coins[1].keep >= coins[2].keep
        fell.add((coins[0].keep, coins[2].keep))
    assert fell == {(False, False), (True, False), (True, True)}


def test_a_group_is_thrown_for_once_even_by_one_who_was_restored() -> None:
    seen, sparing = groups_of_failures(SILENT), Sparing()
    assert throw(sparing, seen)
    restored = Sparing.from_state(json.loads(json.dumps(sparing.state_dict())))
    for one in (sparing, restored):
        assert not throw(one, seen)
        assert throw(one, groups_of_failures(SILENT, group_id=[8]))


def test_groups_that_are_over_are_forgotten() -> None:
    sparing = Sparing()
    for step in range(50):
        throw(sparing, groups_of_failures(SILENT * 3, group_id=3 * step + np.arange(3)))
        assert len(sparing.state_dict()["thrown"]) == 3


def test_weighted_sums_are_unbiased_and_unweighted_ones_are_not() -> None:
    """Groups of one or two stragglers that differ in worth, in length and in what is summed."""
    n, runs, rng = 20, 600, np.random.default_rng(5)
    phase = [p for i in range(n) for p in ([E, E, R, R] if i % 2 else SILENT)]
    seen, value = groups_of_failures(phase), rng.uniform(0.0, 0.48, n)
    left, of = rng.uniform(800, 1000, len(phase)), rng.lognormal(0.0, 1.0, len(phase))
    error, unweighted = np.zeros(runs), np.zeros(runs)
    for seed in range(runs):
        for coin in throw(Sparing(), seen, value, left, seed, step_groups=10_000):
            weight = 1.0 / coin.propensity if coin.keep else 0.0
            error[seed] += of[coin.row] * (weight - 1.0)
            unweighted[seed] += of[coin.row] * (float(coin.keep) - 1.0)
    assert abs(z_score(error)) < 3.5
    assert z_score(unweighted) < -20


def z_score(errors: Floats) -> float:
    """Of their mean."""
    return float(errors.mean() / errors.std() * np.sqrt(len(errors)))


def test_the_policy_says_both_sides_in_a_way_that_the_guard_passes() -> None:
    seen, said = groups_of_failures(SILENT * 4, trainer=replace(BEGAN, groups_wanted=64)), set()
    for seed in range(12):
        policy = Adaptive(allow="modified", stack="full")
        decisions = policy.decide(seen, known(seen, 0.1, 1000.0), np.random.default_rng(seed))
        assert [d.trajectory_id for d in decisions] == [3, 7, 11, 15]
        assert guard(seen, decisions, GuardConfig()) == (decisions, [])
        said |= {d.action for d in decisions}
        again = Adaptive(allow="modified", stack="full")
        again.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        later = again.decide(seen, known(seen, 0.1, 1000.0), np.random.default_rng(seed))
        assert not {d.action for d in later} & {Action.STOP, Action.CONTINUE}
    assert said == {Action.STOP, Action.CONTINUE}


@pytest.mark.parametrize("allow", ["exact", "corrected"])
def test_nobody_is_cancelled_where_samples_must_stay_as_they_are(allow: Any) -> None:
    seen = groups_of_failures(SILENT * 4)
    policy = Adaptive(allow=allow, stack="full")
    decisions = policy.decide(seen, known(seen, 0.04, 1000.0), np.random.default_rng(0))
    assert not {d.action for d in decisions} & {Action.STOP, Action.CONTINUE}


def made_up(seed: int, steps: int, groups: int = 32) -> Workload:
    """Two groups of five are degenerate; hard prompts write more, the longest 16 medians."""
    bank = DriftingSamples(
        192, GROUP, 16_384, spread=3.0, rise=0.0, walk=0.0, median_tokens=300.0, seed=seed
    )
    rng, asked = np.random.default_rng((seed, 1)), []
    for step in range(steps):
        keys = np.sort(rng.choice(192, groups, replace=False))
        drawn = [bank.draw(key, GROUP, step, rng) for key in keys.tolist()]
        asked.append(
            Asked.plain(
                step=step,
                prompt_key=keys,
                group_row=np.repeat(np.arange(groups), GROUP),
                prompt_tokens=200,
                length=np.concatenate([d.length for d in drawn]),
                max_new_tokens=16_384,
                reward=np.concatenate([d.reward for d in drawn]),
            )
        )
    return Workload(asked)


def played(workload: Workload, allow: str) -> Result:
    options = {"allow": allow, "stack": FULL, "defer_share": "0.0"}
    given = [f"placement.options.{name}={value}" for name, value in options.items()]
    config = load_config(None, ["placement.name=adaptive", "tick_s=1.0", *given], environ={})
    return replay(workload, FleetPlan(DENSE_8B, 4), config)


def teaching(workload: Workload, result: Result) -> int:
    """Groups with different rewards among the answers that were not cancelled."""
    reward = np.concatenate([step.reward for step in workload.steps])
    attempts = result.attempts
    reward[attempts.trajectory[attempts.ending == ENDINGS.index("stopped")]] = np.nan
    groups = reward.reshape(-1, GROUP)
    return int((np.nanmax(groups, axis=1) > np.nanmin(groups, axis=1)).sum())


def test_steps_get_much_shorter_and_hardly_a_group_that_teaches_is_lost() -> None:
    workload = made_up(5, steps=8)
    exact, modified = (played(workload, allow) for allow in ("exact", "modified"))
    seconds = [sum(step.makespan_s for step in r.steps) for r in (exact, modified)]
    assert seconds[1] < 0.85 * seconds[0]
    assert sum(step.stopped for step in exact.steps) == 0
    stopped = sum(step.stopped for step in modified.steps)
    assert 0 < stopped < 0.03 * workload.trajectories
    assert teaching(workload, modified) > 0.97 * teaching(workload, exact)
