"""What every speculation policy promises, checked for each file of the folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.observations import forecast_of, random_observation

from steersman.controller.plugins import load, names
from steersman.estimators.forecast import AcceptanceForecast, Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Observation
from steersman.policies.contract import SpeculationPolicy
from steersman.policies.decision import DraftDecision

POLICIES = names("policies.speculation")
every_policy = pytest.mark.parametrize("name", POLICIES)
TICKS, REPLICAS, DEEPEST = 40, 5, 8
SEEDS = st.integers(0, 2**32 - 1)


def build(name: str) -> SpeculationPolicy:
    policy: SpeculationPolicy = load("policies.speculation", name)()
    return policy


def run_of(seed: int) -> list[Observation]:
    """A step's batches fall from full to one, twice; some replicas die, some cannot draft, what the
    engines draft changes whether or not anyone asked, counters go on, reports are old now and then.
    """
    rng = np.random.default_rng(seed)
    seen = random_observation(rng, 120, REPLICAS, slots=16)
    most = rng.choice([0, 1, 4, 8, 16], REPLICAS)
    alive = rng.random(REPLICAS) < 0.8
    counts, run = np.zeros((REPLICAS, DEEPEST), dtype=np.int64), []
    for tick in range(TICKS):
        left = 1.0 - (tick % (TICKS // 2)) / (TICKS // 2)
        running = np.where(rng.random(REPLICAS) < 0.1, 0, np.ceil(16 * left**2)).astype(np.int64)
        counts = counts + rng.integers(0, 200, (REPLICAS, 1)) // np.arange(1, DEEPEST + 1)
        r = replace(
            seen.replicas,
            alive=alive & (rng.random(REPLICAS) < 0.95),
            running=running,
            max_draft_tokens=most,
            draft_tokens=np.minimum(rng.choice([0, 2, 5, 8], REPLICAS), most),
            drafted_at=counts,
            accepted_at=counts * 9 // 10,
            iterations=seen.replicas.iterations + 12,
            busy_s=seen.replicas.busy_s + 0.25,
            sequences_run=seen.replicas.sequences_run + 12.0 * running,
            weight_version=np.full(REPLICAS, tick // (TICKS // 2)),
            metrics_age_s=np.where(rng.random(REPLICAS) < 0.1, 30.0, 0.1),
        )
        step = tick // (TICKS // 2)
        trainer = replace(seen.trainer, step=step, weight_version=step)
        seen = replace(seen, tick=tick, now_s=seen.now_s + 0.25, replicas=r, trainer=trainer)
        run.append(seen)
    return run


def forecast_for(seen: Observation) -> Forecast:
    lengths = np.random.default_rng(0).lognormal(6.0, 1.0, len(seen.trajectories))
    forecast = forecast_of(seen, lengths.tolist(), fixed_s=0.02, per_sequence_s=0.0002)
    share = np.full((len(seen.replicas), DEEPEST), 0.8)
    return replace(forecast, acceptance=AcceptanceForecast(share, np.full(len(share), 100.0)))


def nan_forecast(seen: Observation) -> Forecast:
    """Numbers nowhere."""
    f = forecast_for(seen)
    nothing = np.full(len(seen.replicas), np.nan)
    return replace(
        f,
        length=replace(f.length, mean_remaining_tokens=np.full(len(seen.trajectories), np.nan)),
        acceptance=replace(f.acceptance, acceptance=np.full((len(nothing), DEEPEST), np.nan)),
        throughput=replace(f.throughput, fixed_s=nothing, sequence_s=nothing, token_s=nothing),
    )


def asked(policy: SpeculationPolicy, seen: Observation, forecast: Forecast) -> list[DraftDecision]:
    return policy.decide(seen, forecast, np.random.default_rng(seen.tick))


def said(policy: SpeculationPolicy, run: list[Observation]) -> list[list[DraftDecision]]:
    return [asked(policy, seen, forecast_for(seen)) for seen in run]


def check(name: str, seen: Observation, decisions: list[DraftDecision]) -> None:
    """Legal: a change, within bounds, of a living replica that can draft, at most one for each."""
    r = seen.replicas
    assert len({d.replica for d in decisions}) == len(decisions)
    for d in decisions:
        row = r.names.index(d.replica)
        assert r.alive[row]
        assert 0 <= d.draft_tokens <= r.max_draft_tokens[row]
        assert d.draft_tokens != r.draft_tokens[row]
        assert type(d.draft_tokens) is int
        assert d.policy == name
        assert d.reason


@every_policy
@given(seed=SEEDS)
@settings(deadline=None, max_examples=5)
def test_decisions_are_legal(name: str, seed: int) -> None:
    run = run_of(seed)
    for seen, decisions in zip(run, said(build(name), run), strict=True):
        check(name, seen, decisions)


@pytest.mark.parametrize("name", [n for n in POLICIES if n != "unchanged"])
def test_it_switches_drafting_on_in_a_tail_that_accepts_most_of_it(name: str) -> None:
    decisions = [d for seed in range(3) for tick in said(build(name), run_of(seed)) for d in tick]
    assert any(d.draft_tokens > 0 for d in decisions)


@every_policy
@pytest.mark.parametrize("seed", range(2))
def test_a_forecast_without_numbers_is_no_error(name: str, seed: int) -> None:
    policies = build(name), build(name)
    for seen in run_of(seed):
        check(name, seen, asked(policies[0], seen, nan_forecast(seen)))
        check(name, seen, asked(policies[1], seen, Forecast.unknown(seen)))


@every_policy
def test_a_fleet_without_replicas_or_trajectories_is_no_error(name: str) -> None:
    rng, policy = np.random.default_rng(0), build(name)
    for trajectories, replicas in ((0, 0), (0, 3)):
        seen = random_observation(rng, trajectories, replicas)
        assert policy.decide(seen, forecast_for(seen), rng) == []


@every_policy
@given(seed=SEEDS, at=st.integers(1, TICKS - 1))
@settings(deadline=None, max_examples=3)
def test_it_is_deterministic_and_what_it_remembers_survives_json(
    name: str, seed: int, at: int
) -> None:
    run = run_of(seed)
    expected = said(build(name), run)
    second, third = build(name), build(name)
    assert said(second, run[:at]) == expected[:at]
    third.load_state_dict(json.loads(json.dumps(second.state_dict(), allow_nan=False)))
    assert said(third, run[at:]) == expected[at:]


@every_policy
def test_it_says_that_lossless_drafting_changes_no_sample(name: str) -> None:
    module = __import__(f"steersman.policies.speculation.{name}", fromlist=["PLUGIN"])
    assert build(name).correctness is CorrectnessClass.EXACT
    assert "correctness class: exact" in " ".join((module.__doc__ or "").lower().split())
