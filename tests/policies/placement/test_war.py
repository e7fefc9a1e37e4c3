"""WAR's first layer: the default at low load, priorities at high load, and who waits how long."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.agents_workload import agents, run
from support.observations import (
    ended_table,
    forecast_of,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, Result
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Observation
from steersman.mechanisms.simulated.profile import load_profile
from steersman.policies.decision import Decision
from steersman.policies.placement.war import War

R, Q = Phase.RUNNING, Phase.QUEUED


def ask(policy: War, seen: Observation) -> list[Decision]:
    forecast = forecast_of(seen, [100.0] * len(seen.trajectories))
    return policy.decide(seen, forecast, np.random.default_rng(0))


def test_at_low_load_everything_is_placed_at_once_and_returns_to_its_replica() -> None:
    policy = War(threshold=10, initial=1)
    rows = [1, 0, 1, 1, 1, 1, 0, 0]
    ask(policy, observation(trajectory_table([R] * 8, replica_row=rows), replica_table(2)))
    again = trajectory_table([Q, *[R] * 7, Q], replica_row=[NO_ROW, *rows[1:], NO_ROW])
    placed = ask(policy, observation(again, replica_table(2)))
    assert [d.replica for d in placed] == ["r1", "r0"]


def test_at_high_load_windows_hold_what_waits() -> None:
    seen = observation(trajectory_table([Q] * 40), replica_table(2))
    assert len(ask(War(threshold=10, initial=4), seen)) == 8


def test_the_window_is_never_below_one() -> None:
    """As printed its bound would be 0 for a replica with nothing in flight and nothing waiting."""
    seen = observation(trajectory_table([Q]), replica_table(3))
    assert len(ask(War(threshold=0, initial=0.1), seen)) == 1


def three_groups() -> Observation:
    """Groups 0, 1, 2 of three; one of 0 had 9 turns, one of 2 had 2; all others wait."""
    phase = [Phase.ENDED, Q, Q, Q, Q, Q, Phase.ENDED, Q, Q]
    ended = replace(
        ended_table([10, 10], turns=[9, 2]),
        trajectory_id=np.array([0, 6]),
        group_id=np.array([0, 2]),
    )
    waits_since = [1000.0, 990.0, 990.0, *[1000.0] * 6]
    table = trajectory_table(phase, 3, queued_s=waits_since)
    return observation(table, replica_table(1), now_s=1005.0, ended=ended)


def test_groups_of_few_turns_go_first_and_unknown_ones_count_with_the_mean() -> None:
    placed = ask(War(threshold=0, initial=5), three_groups())
    assert [d.trajectory_id for d in placed] == [7, 8, 3, 4, 5]


def test_who_has_waited_too_long_goes_before_any_group() -> None:
    placed = ask(War(threshold=0, initial=5, protect_after_s=10), three_groups())
    assert [d.trajectory_id for d in placed] == [1, 2, 7, 8, 3]


def test_a_cached_prefix_outweighs_the_load() -> None:
    rows = [0] * 4 + [1] + [NO_ROW]
    table = trajectory_table([R] * 5 + [Q], replica_row=rows)
    fleet = replica_table(2, prefix_hit_share=[0.9, 0.2])
    seen = observation(table, fleet)
    assert ask(War(threshold=0), seen)[0].replica == "r0"
    assert ask(War(threshold=0, cache_weight=0), seen)[0].replica == "r1"


Waits = list[tuple[int, float]]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Group and seconds of waiting of everything that the policy places."""
    seen: Waits = []
    decide = War.decide

    def noted(
        self: War, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        decisions, t = decide(self, observation, forecast, rng), observation.trajectories
        for row in (d.row for d in decisions):
            group = int(observation.groups.group_id[t.group_row[row]])
            seen.append((group, float(observation.now_s - t.queued_s[row])))
        return decisions

    monkeypatch.setattr(War, "decide", noted)
    return seen


def stream(**options: Any) -> Result:
    """Every fourth group has eight turns, the others two; four groups are open at once."""
    turns = np.where(np.arange(12) % 4 == 0, 8, 2)
    work = agents(turns, size=32, extra=100, prompt_tokens=200)
    fleet = FleetPlan(load_profile("qwen3-8b-h100-tp1"), 2)
    own = {"threshold": 0, "initial": 6, "kv_low": 0, **options}
    return run(work, fleet, "war", own, 2.0, Options(inflight_groups=4, batch_groups=4))


def test_without_wait_protection_long_groups_starve_while_short_ones_look_fast(
    waits: Waits,
) -> None:
    """The paper's warning: 46.9 % less time at first sight, paid by those who wait."""
    unprotected = stream(protect_after_s=float("inf"))
    longest_s = max(s for group, s in waits if group % 4 == 0)
    waits.clear()
    protected = stream(protect_after_s=30.0)
    assert longest_s > 1.5 * max(s for group, s in waits if group % 4 == 0)
    early = [sum(step.makespan_s for step in r.steps[:2]) for r in (unprotected, protected)]
    whole = [sum(step.makespan_s for step in r.steps) for r in (unprotected, protected)]
    assert early[0] < early[1]
    assert whole[0] > 0.95 * whole[1]
