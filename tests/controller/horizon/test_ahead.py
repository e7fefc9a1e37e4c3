"""The look ahead: what it says of a plan is what becomes of it, as far as that can be known."""

from dataclasses import replace

import numpy as np
import pytest
from support.certain import certain
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.horizon.ahead import look_ahead, paired_error, simulated_ends
from steersman.controller.horizon.worlds import Worlds
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.world import World
from steersman.controller.tournament.clairvoyant import clairvoyant_makespan
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.forecast import AcceptanceForecast, Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Objective, Observation, TrainerSignal
from steersman.mechanisms.simulated.profile import load_profile
from steersman.policies.adaptive.plans import DEFAULT, PLANS, Order, Plan
from steersman.policies.decision import place

PROFILE = load_profile("qwen3-8b-h100-tp1")
LITTLE_MEMORY = FleetPlan(replace(PROFILE, kv_capacity_tokens=100_000), 2)
MANY_WAVES = FleetPlan(replace(PROFILE, max_num_seqs=8), 4)
STEP = Lengths(steps=1, groups=32, group_size=8, median_tokens=2000, p90_over_p50=3.0)
AT_ONCE = Plan("longest first, fewest in flight", hold=False, order=Order.LONGEST)
KNOWN = (
    AT_ONCE,
    *(
        Plan(f"longest first, the memory promised {share:g} times", True, Order.LONGEST, share)
        for share in (1.0, 2.0, 3.0)
    ),
)
"""Named as the clairvoyant reference names its schedules, which they are."""


def waiting(n: int = 64, **trainer: object) -> tuple[Observation, Forecast]:
    """Two replicas of eight slots, nothing begun, lengths known to a factor of two or so."""
    seen = observation(
        trajectory_table([Phase.QUEUED] * n, group_size=4),
        replica_table(2, max_num_seqs=np.full(2, 8)),
        trainer=TrainerSignal(**trainer),  # type: ignore[arg-type]
    )
    mean = np.random.default_rng(3).uniform(200, 2000, n)
    return seen, forecast_of(seen, mean.tolist(), spread=0.6)


@pytest.mark.parametrize("fleet", [LITTLE_MEMORY, MANY_WAVES], ids=["little memory", "many waves"])
def test_with_every_length_known_it_ranks_plans_as_the_clairvoyant_reference_runs_them(
    fleet: FleetPlan,
) -> None:
    (step,) = made_up(STEP, 3).steps
    world = World(fleet)
    world.admit(step)
    seen = world.observe(TrainerSignal())
    advice = look_ahead(seen, certain(seen, step.length, fleet), KNOWN)
    assert advice is not None
    told = dict(zip(advice.plans, advice.mean_s.tolist(), strict=True))
    run = clairvoyant_makespan(step, fleet, latency_s=0.0).all_s
    assert told == pytest.approx({name: run[name] for name in told}, rel=0.04)
    assert told[AT_ONCE.name] == pytest.approx(run[AT_ONCE.name])
    assert (advice.error_s < 1e-9).all()
    for a in told:
        for b in told:
            assert run[a] > 0.95 * run[b] or told[a] < told[b]


@pytest.mark.parametrize("fleet", [LITTLE_MEMORY, MANY_WAVES], ids=["little memory", "many waves"])
def test_in_the_middle_of_a_step_what_runs_goes_on_from_where_it_is(fleet: FleetPlan) -> None:
    (step,) = made_up(STEP, 4).steps
    world = World(fleet)
    rows = world.admit(step)
    seen = world.observe(TrainerSignal())
    first = [place(seen, int(row), int(row) % fleet.replicas, "", "") for row in rows[:24]]
    world.apply(first)
    world.advance(15.0)
    seen = world.observe(TrainerSignal())
    assert len(seen.running) > 5
    (end_s,) = simulated_ends(seen, certain(seen, step.length, fleet), (DEFAULT,), 4)
    count = seen.inflight()
    rest = []
    for row in seen.queued.tolist():
        rest.append(place(seen, row, int(count.argmin()), "", ""))
        count[count.argmin()] += 1
    world.apply(rest)
    world.advance(np.inf)
    # a part of a token is not seen, nor the prompts that the engines still hold
    assert end_s == pytest.approx([world.now_s - 15.0] * 4, rel=0.01)


def test_plans_are_compared_on_the_same_draws() -> None:
    seen, forecast = waiting()
    end_s = simulated_ends(seen, forecast, PLANS, 32)
    unpaired = np.sqrt((end_s.var(axis=1, ddof=1) + end_s[0].var(ddof=1)) / 32)
    assert (end_s.std(axis=1) > 0).all()
    assert (paired_error(end_s)[1:] < 0.7 * unpaired[1:]).all()


def test_the_error_is_that_of_independent_pairs() -> None:
    end_s = np.array([[10.0, 20.0, 30.0, 40.0], [11.0, 25.0, 31.0, 39.0]])
    # differences 1, 5, 1, -1; the pairs' means 1 and 2
    assert paired_error(end_s) == pytest.approx([0.0, np.std([1, 2], ddof=1) / np.sqrt(2)])


def test_the_same_question_has_the_same_answer_to_the_bit() -> None:
    seen, forecast = waiting()
    first, again = (look_ahead(seen, forecast, PLANS) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.mean_s.tobytes() == again.mean_s.tobytes()
    assert first.error_s.tobytes() == again.error_s.tobytes()
    assert (first.step, first.asked_s) == (0, seen.now_s)
    assert first.plans == tuple(plan.name for plan in PLANS)


def test_there_is_nothing_to_say_where_plans_make_no_difference_or_the_end_is_not_the_last() -> (
    None
):
    seen, forecast = waiting()
    assert look_ahead(seen, forecast, ()) is None
    nobody = replace(seen, replicas=replace(seen.replicas, alive=np.zeros(2, dtype=np.bool_)))
    assert look_ahead(nobody, forecast, PLANS) is None
    begun = replace(seen.trajectories, phase=np.full(64, int(Phase.PARKED)))
    assert look_ahead(replace(seen, trajectories=begun), forecast, PLANS) is None
    for trainer in ({"objective": Objective.STREAM}, {"groups_wanted": 3}):
        assert look_ahead(*waiting(**trainer), PLANS) is None


def test_a_dead_replica_takes_no_part() -> None:
    seen, forecast = waiting()
    one = replace(seen, replicas=replace(seen.replicas, alive=np.array([True, False])))
    both, alone = (look_ahead(each, forecast, (DEFAULT,)) for each in (seen, one))
    assert both is not None
    assert alone is not None
    assert alone.mean_s[0] > 1.5 * both.mean_s[0]


def test_what_alone_exceeds_the_memory_is_sent_all_the_same() -> None:
    seen, forecast = waiting(8)
    small = replace(seen.replicas, kv_capacity_tokens=np.full(2, 150))
    advice = look_ahead(replace(seen, replicas=small), forecast, PLANS)
    assert advice is not None
    assert np.isfinite(advice.mean_s).all()


def test_of_very_many_trajectories_fewer_futures_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, forecast = waiting()
    monkeypatch.setattr("steersman.controller.horizon.ahead.MOST_ROWS", 64 * len(PLANS) * 6 + 1)
    assert simulated_ends(seen, forecast, PLANS, 32).shape == (len(PLANS), 6)


def test_what_a_replica_drafts_writes_more_tokens_and_is_paid_for() -> None:
    """One trajectory of 1000 tokens, K = 2 accepted for sure, then never."""
    seen = observation(
        trajectory_table([Phase.RUNNING], replica_row=[0]), replica_table(1, draft_tokens=[2])
    )
    forecast = forecast_of(seen, [1000.0], fixed_s=0.01, per_sequence_s=0.001)
    throughput = replace(
        forecast.throughput, verify_s=np.array([0.005]), verify_token_s=np.array([0.002])
    )
    takes_s = 0.01 + 0.001 + 0.005 + 2 * 0.002
    for chance, written in ((1.0, 3), (0.0, 1)):
        drafts = AcceptanceForecast(np.full((1, 4), chance), np.ones(1))
        world = Worlds(
            seen,
            replace(forecast, throughput=throughput, acceptance=drafts),
            np.array([0]),
            np.array([[1000.0]]),
        )
        world.advance(np.inf)
        assert world.ends_s[0, 0] == pytest.approx(1000 / written * takes_s)
