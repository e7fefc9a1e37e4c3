"""What every stopping policy promises, checked for each file of the folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.observations import ended_table, random_observation

from steersman.controller.plugins import load, names
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Observation
from steersman.policies.contract import StoppingPolicy
from steersman.policies.decision import Action, Decision

POLICIES = names("policies.stopping")
every_policy = pytest.mark.parametrize("name", POLICIES)
TICKS = 30
SEEDS = st.integers(0, 2**32 - 1)


def build(name: str) -> StoppingPolicy:
    policy: StoppingPolicy = load("policies.stopping", name)()
    return policy


def run_of(seed: int, trajectories: int = 60, streamed: float = 0.8) -> list[Observation]:
    """Consecutive observations: everyone who runs writes, regrets are heavy-tailed, some have
    none, a step ends every second tick, some trajectories end, a third loops, and in the last
    third of the time these write what is unlikely."""
    rng = np.random.default_rng(seed)
    seen = random_observation(rng, trajectories, 3, alive_share=0.7)
    loops, run = rng.random(trajectories) < 0.3, []
    for tick in range(TICKS):
        t = seen.trajectories
        running = (t.phase == Phase.RUNNING) & (rng.random(trajectories) < 0.9)
        tokens = np.minimum(
            t.generated_tokens + np.where(running, rng.integers(0, 200, trajectories), 0),
            t.max_new_tokens,
        )
        heard = running & (rng.random(trajectories) < streamed)
        regret = rng.exponential(0.3, trajectories) ** 3 + 50.0 * (loops & (tick > TICKS * 2 / 3))
        regret = np.where(heard, regret, np.nan)
        share = np.where(heard, np.where(loops, 0.95, rng.random(trajectories) * 0.5), np.nan)
        phase = np.where(running & (rng.random(trajectories) < 0.02), int(Phase.ENDED), t.phase)
        gone = np.flatnonzero((phase == Phase.ENDED) & (t.phase != Phase.ENDED))
        table = replace(
            t, generated_tokens=tokens, regret=regret, repeated_share=share, phase=phase
        )
        seen = replace(
            seen,
            tick=tick,
            now_s=seen.now_s + 0.25,
            trajectories=table,
            trainer=replace(seen.trainer, step=tick // 2),
            ended=ended_table(
                tokens[gone].tolist(),
                trajectory_id=t.trajectory_id[gone],
                censored=np.ones(len(gone), dtype=np.bool_),
            ),
        )
        run.append(seen)
    return run


def forecast_for(seen: Observation, unknown: bool = False) -> Forecast:
    forecast = Forecast.unknown(seen)
    chance = np.full(len(seen.groups), np.nan if unknown else 0.3)
    return replace(forecast, success=replace(forecast.success, pass_probability=chance))


def stops(policy: StoppingPolicy, run: list[Observation], **how: bool) -> list[list[Decision]]:
    return [
        policy.decide(seen, forecast_for(seen, **how), np.random.default_rng(seen.tick))
        for seen in run
    ]


@every_policy
@given(seed=SEEDS)
@settings(deadline=None, max_examples=6)
def test_only_running_trajectories_are_stopped_each_once_and_with_a_reason(
    name: str, seed: int
) -> None:
    run = run_of(seed)
    for seen, decisions in zip(run, stops(build(name), run), strict=True):
        assert len({d.trajectory_id for d in decisions}) == len(decisions)
        for d in decisions:
            assert d.action is Action.STOP
            assert seen.trajectories.trajectory_id[d.row] == d.trajectory_id
            assert seen.trajectories.phase[d.row] == Phase.RUNNING
            assert 0.0 < d.propensity <= 1.0
            assert d.policy == name
            assert d.reason


@pytest.mark.parametrize("name", [n for n in POLICIES if n != "never"])
def test_a_policy_that_says_it_changes_the_samples_does_stop_something(name: str) -> None:
    assert sum(len(d) for d in stops(build(name), run_of(0))) > 0
    assert build(name).correctness is not CorrectnessClass.EXACT


@every_policy
def test_nothing_is_stopped_where_nothing_is_streamed(name: str) -> None:
    policy = build(name)
    assert stops(policy, run_of(1, streamed=0.0)) == [[]] * TICKS


@every_policy
def test_an_unknown_forecast_is_no_error(name: str) -> None:
    run = run_of(2)
    for decisions in stops(build(name), run, unknown=True):
        assert all(0.0 < d.propensity <= 1.0 for d in decisions)
    assert stops(build(name), run_of(2, trajectories=0)) == [[]] * TICKS


@every_policy
@given(seed=SEEDS, at=st.integers(1, TICKS - 1))
@settings(deadline=None, max_examples=5)
def test_it_is_deterministic_and_what_it_remembers_survives_json(
    name: str, seed: int, at: int
) -> None:
    run = run_of(seed)
    first, second = build(name), build(name)
    expected = stops(first, run)
    assert stops(second, run[:at]) == expected[:at]
    third = build(name)
    third.load_state_dict(json.loads(json.dumps(second.state_dict(), allow_nan=False)))
    assert stops(third, run[at:]) == expected[at:]


@every_policy
def test_its_docstring_names_the_correctness_class_of_its_samples(name: str) -> None:
    module = __import__(f"steersman.policies.stopping.{name}", fromlist=["PLUGIN"])
    stated = " ".join((module.__doc__ or "").lower().split())
    assert f"correctness class{':' if name == 'never' else ''}" in stated
    assert build(name).correctness.name.lower() in stated
