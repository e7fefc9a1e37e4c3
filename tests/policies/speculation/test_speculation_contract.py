"""What every speculation policy promises, checked for each file of the folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.observations import forecast_of, random_observation

from steersman.controller.config import GuardConfig
from steersman.controller.guard import feasible, guard
from steersman.controller.plugins import load, names
from steersman.estimators.forecast import AcceptanceForecast, Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import AS_REPLICA, ONLY_AS_REPLICA, Observation
from steersman.policies.contract import Drafts, SpeculationPolicy
from steersman.policies.decision import Action, Decision, DraftDecision

POLICIES = names("policies.speculation")
every_policy = pytest.mark.parametrize("name", POLICIES)
TICKS, REPLICAS, DEEPEST = 40, 5, 8
MOST_TOLD = 64
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
    n = len(seen.trajectories)
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
        # some have a number of their own, on replicas that can draft so many or not
        own = np.where(rng.random(n) < 0.1, rng.choice([0, 1, 4, 8], n), AS_REPLICA)
        if seed % 2:
            own = np.full(n, ONLY_AS_REPLICA)
        step = tick // (TICKS // 2)
        trainer = replace(seen.trainer, step=step, weight_version=step)
        seen = replace(
            seen,
            tick=tick,
            now_s=seen.now_s + 0.25,
            replicas=r,
            trainer=trainer,
            trajectories=replace(seen.trajectories, draft_tokens=own),
        )
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


def asked(policy: SpeculationPolicy, seen: Observation, forecast: Forecast) -> Drafts:
    return policy.decide(seen, forecast, np.random.default_rng(seen.tick))


def said(policy: SpeculationPolicy, run: list[Observation]) -> list[Drafts]:
    return [asked(policy, seen, forecast_for(seen)) for seen in run]


def check(name: str, seen: Observation, decisions: Drafts) -> None:
    """Legal: a change, within bounds, of a living replica that can draft, or of a trajectory that
    runs and can be told; at most one for each, and not very many."""
    r = seen.replicas
    of_replicas = [d for d in decisions if isinstance(d, DraftDecision)]
    of_single = [d for d in decisions if isinstance(d, Decision)]
    assert len({d.replica for d in of_replicas}) == len(of_replicas)
    for d in of_replicas:
        row = r.names.index(d.replica)
        assert r.alive[row]
        assert 0 <= d.draft_tokens <= r.max_draft_tokens[row]
        assert d.draft_tokens != r.draft_tokens[row]
    assert len({d.trajectory_id for d in of_single}) == len(of_single) <= MOST_TOLD
    t = seen.trajectories
    for d in of_single:
        assert d.action is Action.SPECULATE
        assert t.trajectory_id[d.row] == d.trajectory_id
        assert t.phase[d.row] == Phase.RUNNING
        assert t.draft_tokens[d.row] not in (d.draft_tokens, ONLY_AS_REPLICA)
        assert AS_REPLICA <= d.draft_tokens <= r.max_draft_tokens[t.replica_row[d.row]]
    for d in decisions:
        assert type(d.draft_tokens) is int
        assert d.policy == name
        assert d.reason
    # what the guard is for elsewhere must not be needed here
    kept, dropped = guard(seen, of_single, GuardConfig())
    assert (len(kept), dropped) == (len(of_single), [])
    assert feasible(seen, of_replicas) == of_replicas


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
        assert list(policy.decide(seen, forecast_for(seen), rng)) == []


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
