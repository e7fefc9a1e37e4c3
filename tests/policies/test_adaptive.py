"""The whole policy: what it does in a tick, in a step, and in runs of steps."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from support.controllers import steered_by
from support.observations import (
    STEP_START_S,
    forecast_of,
    observation,
    random_observation,
    replica_table,
    trajectory_table,
)
from support.reversed_lengths import ReversedLength
from support.small_replay import PROFILE, small_workload
from support.steered_replay import steered
from support.tailed_replay import DENSE_8B, EIGHT

from steersman.controller.config import load_config
from steersman.controller.core import Controller, Estimators, Stack
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, replay
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Advice, Objective, Observation, TrainerSignal
from steersman.policies.adaptive.arms import ARMS
from steersman.policies.adaptive.plans import PLANS
from steersman.policies.adaptive.sharing import FEWEST
from steersman.policies.contract import Explains, LooksAhead
from steersman.policies.decision import Action, Decision, DraftDecision
from steersman.policies.placement.adaptive import USUAL, Adaptive
from steersman.policies.placement.staleness_admission import StalenessAdmission

Q, R, E = Phase.QUEUED, Phase.RUNNING, Phase.ENDED
FOUR = FleetPlan(PROFILE, 4)
STRONG_TAIL = Lengths(steps=2, groups=32, group_size=4)
SIBLINGS_ALIKE = Lengths(
    steps=2, groups=24, group_size=8, median_tokens=800, p90_over_p50=3.0, max_new_tokens=8192,
    pool=1 << 12, prompt_share=0.95,
)  # fmt: skip
FEW_SLOTS = FleetPlan(replace(DENSE_8B, max_num_seqs=16), 4)


def decide(
    policy: Adaptive, seen: Observation, mean: list[float], **forecast: Any
) -> list[Decision]:
    return policy.decide(seen, forecast_of(seen, mean, **forecast), np.random.default_rng(0))


def waiting(n: int, replicas: int = 4, slots: int = 64, **more: Any) -> Observation:
    return observation(
        trajectory_table([Q] * n), replica_table(replicas, max_num_seqs=[slots] * replicas), **more
    )


def running(rows: list[int], replicas: int = 2, **columns: Any) -> Observation:
    n = len(rows)
    columns.setdefault("generated_tokens", [1000] * n)
    columns.setdefault("oldest_weight_version", [0] * n)
    more = {name: columns.pop(name) for name in ("now_s", "trainer") if name in columns}
    fleet = columns.pop("fleet", replica_table(replicas))
    table = trajectory_table([R] * n, columns.pop("group_size", 1), replica_row=rows, **columns)
    return observation(table, fleet, **more)


def reason_of(decisions: list[Decision]) -> str:
    return decisions[0].reason


# a tick in which all that waits has room

WEAK_TAIL = [2000.0] * 4 + [1000.0] * 60


def test_a_plan_that_beats_the_default_is_followed_and_explained() -> None:
    policy = Adaptive()
    decisions = decide(policy, waiting(64), WEAK_TAIL)
    assert len(decisions) == 64
    assert reason_of(decisions).startswith("cut by length: the step would end ")
    weighed = policy.alternatives()
    assert list(weighed) == ["default", "longest first", "cut by length"]
    assert weighed["cut by length"] < 0.99 * weighed["default"]
    assert isinstance(policy, Explains)
    assert isinstance(policy, LooksAhead)


def test_the_default_plays_where_nothing_beats_it_by_the_margin() -> None:
    assert reason_of(decide(Adaptive(), waiting(64), [1000.0] * 64)) == "fewest in flight"
    strict = Adaptive(margin=1.0)
    assert reason_of(decide(strict, waiting(64), WEAK_TAIL)) == "fewest in flight"
    assert strict.alternatives()


def test_what_nothing_was_compared_in_explains_nothing() -> None:
    policy = Adaptive()
    decide(policy, waiting(64), WEAK_TAIL)
    decide(policy, running([0, 1]), [10.0, 10.0])
    assert policy.alternatives() == {}


# a tick in which it has not


def test_what_has_no_slot_is_kept() -> None:
    decisions = decide(Adaptive(), waiting(64, slots=4), WEAK_TAIL)
    assert len(decisions) == 16
    assert reason_of(decisions).startswith(USUAL.name)
    assert {d.trajectory_id for d in decisions[:4]} == {0, 1, 2, 3}


def test_without_holding_all_goes_at_once() -> None:
    policy = Adaptive(hold=False)
    assert policy.plans == ()
    assert len(decide(policy, waiting(64, slots=4), WEAK_TAIL)) == 64


def advised(plan: str, step: int = 0, error_s: float = 0.1) -> Advice:
    """`plan` ends a fifth sooner than all others."""
    names = tuple(p.name for p in PLANS)
    mean = np.array([80.0 if name == plan else 100.0 for name in names])
    return Advice(step, STEP_START_S, names, mean, np.full(len(names), error_s))


@pytest.mark.parametrize("plan", [p for p in PLANS if p is not USUAL])
def test_what_looking_ahead_found_is_followed(plan: Any) -> None:
    policy = Adaptive()
    assert policy.plans == PLANS
    decisions = decide(policy, waiting(64, slots=4, advice=advised(plan.name)), WEAK_TAIL)
    assert len(decisions) == (16 if plan.hold else 64)
    assert reason_of(decisions).startswith(plan.name if plan.hold else "fewest in flight")
    assert policy.alternatives()[plan.name] == 80.0


@pytest.mark.parametrize(
    "advice",
    [advised("default", step=7), advised("default", error_s=11.0), advised("none of them")],
    ids=["of another step", "within its error", "all alike"],
)
def test_advice_that_says_nothing_changes_nothing(advice: Advice) -> None:
    decisions = decide(Adaptive(), waiting(64, slots=4, advice=advice), WEAK_TAIL)
    assert reason_of(decisions).startswith(USUAL.name)


def test_advice_holds_until_the_next() -> None:
    policy = Adaptive()
    decide(policy, waiting(64, slots=4, advice=advised("hold 1x")), WEAK_TAIL)
    assert reason_of(decide(policy, waiting(64, slots=4), WEAK_TAIL)).startswith("hold 1x")


def test_agents_are_not_advised() -> None:
    policy = Adaptive()
    policy._contexts.growth = 5.0
    decisions = decide(policy, waiting(64, slots=4, advice=advised("default")), WEAK_TAIL)
    assert reason_of(decisions).startswith(USUAL.name)


# moves

SLOPE = {"fixed_s": 0.01, "per_sequence_s": 0.004}


def test_what_runs_is_moved_and_explained() -> None:
    policy = Adaptive()
    first, second = decide(policy, running([0] * 4), [1000.0] * 4, **SLOPE)
    assert (first.action, first.trajectory_id, first.replica) == (Action.MIGRATE, 0, "r1")
    assert second.action is Action.MIGRATE
    assert first.gain_s == pytest.approx(4.0)
    assert first.reason.startswith(
        "r0 would end 13.0 s after the mean replica; moving this one to r1"
    )
    weighed = policy.alternatives()
    assert weighed["2 moved"] < weighed["nothing moved"] == pytest.approx(26.0)


def test_a_move_into_another_pool_is_an_isolation() -> None:
    fleet = replica_table(2, pools=("bulk", "tail"))
    decisions = decide(Adaptive(), running([0] * 4, fleet=fleet), [1000.0] * 4, **SLOPE)
    assert {d.action for d in decisions} == {Action.ISOLATE}


def test_what_moved_a_moment_ago_rests() -> None:
    seen = running([0] * 4, now_s=100.0, moved_s=[96.0, 96.0, 94.0, 96.0])
    decisions = decide(Adaptive(), seen, [1000.0] * 4, **SLOPE)
    assert [d.trajectory_id for d in decisions] == [2]


def test_no_more_move_than_the_option_says() -> None:
    assert decide(Adaptive(max_moves=0), running([0] * 4), [1000.0] * 4, **SLOPE) == []
    assert len(decide(Adaptive(max_moves=1), running([0] * 4), [1000.0] * 4, **SLOPE)) == 1


# putting off


def in_the_tail(allow: str, max_lag: int = 1) -> list[Decision]:
    """The last of ten groups, alone for another 14 s."""
    policy = Adaptive(allow=allow)  # type: ignore[arg-type]
    trainer = TrainerSignal(max_lag=max_lag)
    decide(policy, running([0] * 20, 1, group_size=2, trainer=trainer), [100.0] * 20)
    return decide(policy, running([0, 0], 1, group_size=2, trainer=trainer), [1000.0] * 2)


def test_the_last_groups_are_put_off_only_where_that_is_allowed() -> None:
    assert in_the_tail("exact") == []
    for allow in ("corrected", "modified"):
        decisions = in_the_tail(allow)
        assert [(d.action, d.trajectory_id) for d in decisions] == [
            (Action.DEFER, 0), (Action.DEFER, 1),
        ]  # fmt: skip
        assert "1 of the step's 10 groups" in reason_of(decisions)
    assert in_the_tail("corrected", max_lag=0) == []


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'all'.* corrected"):
        Adaptive(allow="all")  # type: ignore[arg-type]


def test_what_it_may_do_to_samples_is_what_its_options_allow() -> None:
    assert Adaptive.correctness is CorrectnessClass.EXACT
    for allow in ("exact", "corrected", "modified"):
        assert Adaptive.correctness_with({"allow": allow}).name.lower() == allow
    assert Adaptive.correctness_with({}) is CorrectnessClass.EXACT


# what is doubted is not used


@pytest.mark.parametrize("doubted", ["_trust", "_pace"])
def test_forecasts_that_are_doubted_are_not_used(doubted: str) -> None:
    policy = Adaptive()
    getattr(policy, doubted).doubted = True
    if doubted == "_pace":
        policy._pace.error = 1.0
    assert reason_of(decide(policy, waiting(64), WEAK_TAIL)) == "fewest in flight"
    held = decide(policy, waiting(64, slots=4), WEAK_TAIL[::-1])
    assert [d.trajectory_id for d in held] == list(range(16))
    assert "arrival first" in reason_of(held)
    assert decide(policy, running([0] * 4), [1000.0] * 4, **SLOPE) == []


# replicas that share something


def gathering() -> Adaptive:
    policy = Adaptive(gather=True)
    policy._sharing.gain = -0.6
    policy._sharing._gram[0, 0] = 10 * FEWEST
    return policy


M_ONLY = {"per_sequence_s": 1e-5}


def test_a_step_is_gathered_to_its_end() -> None:
    """Half or a quarter of the fleet; what comes back later goes there too."""
    policy = gathering()
    used = {d.replica for d in decide(policy, waiting(32), [1000.0] * 32, **M_ONLY)}
    assert set(policy._open) == used
    assert 1 <= len(used) <= 2
    later = trajectory_table([R] * 8 + [Q] * 2, replica_row=[0] * 8 + [-1, -1])
    again = decide(policy, observation(later, replica_table(4)), [1000.0] * 10, **M_ONLY)
    assert {d.replica for d in again} <= used


def test_the_next_step_begins_on_all_replicas_and_so_does_one_whose_replicas_died() -> None:
    policy = gathering()
    decide(policy, waiting(32), [1000.0] * 32, **M_ONLY)
    other = replace(policy._sharing, gain=0.0)
    state = policy.state_dict()
    for how in ("step", "death"):
        policy = Adaptive()
        policy.load_state_dict(state)
        policy._sharing = other
        open_ = policy._open
        assert open_
        seen = waiting(32, trainer=TrainerSignal(step=int(how == "step")))
        alive = np.array([name not in open_ or how == "step" for name in seen.replicas.names])
        seen = replace(seen, replicas=replace(seen.replicas, alive=alive))
        used = {d.replica for d in decide(policy, seen, [1000.0] * 32, **M_ONLY)}
        assert used == {n for n, lives in zip(seen.replicas.names, alive, strict=True) if lives}


def test_nothing_is_gathered_where_that_is_switched_off() -> None:
    policy = gathering()
    policy.gather = False
    assert len({d.replica for d in decide(policy, waiting(32), [1000.0] * 32, **M_ONLY)}) == 4


# fleets and steps of any kind


@pytest.mark.parametrize(
    "seen",
    [
        waiting(5, replicas=0),
        replace(waiting(5), replicas=replica_table(4, alive=[False] * 4)),
        replace(waiting(5), replicas=replica_table(4, alive=[True, False, False, True])),
        waiting(0),
        waiting(0, replicas=0),
        waiting(5, replicas=1),
        waiting(5, slots=0),
        running([0, 0, 0], replicas=1),
        observation(trajectory_table([E, E, E]), replica_table(2)),
        observation(trajectory_table([R, R]), replica_table(2, alive=[False, True]))
    ],
    ids=[
        "no replicas", "all dead", "some dead", "no trajectories", "nothing", "one replica",
        "no slots", "one replica runs", "all ended", "runs nowhere",
    ],
)  # fmt: skip
@pytest.mark.parametrize("objective", list(Objective))
def test_any_fleet_gets_an_answer(seen: Observation, objective: Objective) -> None:
    policy = Adaptive(allow="modified")
    living = {n for n, a in zip(seen.replicas.names, seen.replicas.alive, strict=True) if a}
    for step in range(3):
        now = replace(seen, trainer=TrainerSignal(step=step, objective=objective), tick=step)
        for forecast in (forecast_of(now, [100.0] * len(now.trajectories)), Forecast.unknown(now)):
            decisions = policy.decide(now, forecast, np.random.default_rng(step))
            assert {d.replica for d in decisions} <= living
            assert bool(decisions) == bool(len(now.queued) and living)
            policy.draft(now, forecast, np.random.default_rng(step))
            json.dumps(policy.state_dict(), allow_nan=False)


def test_a_replica_of_unknown_memory_and_no_slots_is_used_one_after_another() -> None:
    seen = waiting(5, replicas=2, slots=0)
    assert len(decide(Adaptive(), seen, [100.0] * 5)) == 2


def test_a_stream_begins_groups_by_the_staleness_budget_and_moves_nothing() -> None:
    rng = np.random.default_rng(0)
    policy, gate = Adaptive(), StalenessAdmission()
    for tick in range(5):
        seen = random_observation(rng, 60, 4, objective=Objective.STREAM, groups_wanted=4)
        seen = replace(seen, tick=tick)
        ours = decide(policy, seen, [1000.0] * 60)
        theirs = gate.decide(seen, Forecast.unknown(seen), np.random.default_rng(0))
        assert [(d.trajectory_id, d.replica) for d in ours] == [
            (d.trajectory_id, d.replica) for d in theirs
        ]


# runs


@dataclass
class Reloaded:
    """At every tick, a policy that was saved and loaded decides what the one that was not does."""

    make: Callable[[], Adaptive]
    correctness = CorrectnessClass.MODIFIED
    going_on: Adaptive = field(init=False)
    ticks: int = 0
    actions: set[Action] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.going_on = self.make()

    @property
    def plans(self) -> Any:
        return self.going_on.plans

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        loaded, seed = self.make(), (0, observation.tick)
        loaded.load_state_dict(json.loads(json.dumps(self.going_on.state_dict(), allow_nan=False)))
        decisions = self.going_on.decide(observation, forecast, np.random.default_rng(seed))
        assert loaded.decide(observation, forecast, np.random.default_rng(seed)) == decisions
        assert loaded.alternatives() == self.going_on.alternatives()
        assert loaded.plans == self.going_on.plans
        assert loaded.state_dict() == self.going_on.state_dict()
        self.ticks += 1
        self.actions |= {d.action for d in decisions}
        return decisions

    def draft(self, observation: Observation, forecast: Forecast, rng: Any) -> list[DraftDecision]:
        return self.going_on.draft(observation, forecast, rng)

    def state_dict(self) -> dict[str, Any]:
        return self.going_on.state_dict()


def test_a_policy_saved_at_any_tick_goes_on_the_same() -> None:
    """Tails on replicas with few slots, where groups may be put off."""
    policy = Reloaded(lambda: Adaptive(allow="corrected"))
    workload = small_workload(steps=5, groups=8, size=4)
    steered(workload, FOUR, steered_by(policy), tick_s=0.2, max_lag=1)
    assert policy.ticks > 50
    assert {Action.PLACE, Action.DEFER} <= policy.actions


def test_a_policy_of_a_tail_saved_at_any_tick_goes_on_the_same() -> None:
    policy = Reloaded(Adaptive)
    steered(made_up(STRONG_TAIL, 0), EIGHT, steered_by(policy))
    assert {Action.PLACE, Action.MIGRATE} <= policy.actions


def test_what_is_remembered_does_not_grow_and_tells_what_was_learned() -> None:
    """Two hundred steps; the state's size just before each ends."""
    policy, sizes = Adaptive(), dict[int, int]()

    def look(world: Any) -> None:
        sizes[policy._book.step or 0] = len(json.dumps(policy.state_dict()))

    workload = small_workload(steps=200, groups=4, size=2)
    steered(workload, FleetPlan(PROFILE, 2), steered_by(policy), tick_s=1.0, after_tick=look)
    size = np.array([sizes[step] for step in range(200)])
    assert size[100:].mean() < 1.05 * size[10:100].mean()
    assert size.max() < 20_000
    state = policy.state_dict()
    assert state["arm"] in ARMS
    assert state["bandit"]["arms"] == list(ARMS)
    assert state["bandit"]["steps"] > 150  # steps within one tick tell nothing


def makespans(placement: str, workload: Workload, plan: FleetPlan, reverse: bool) -> float:
    """Seconds of all steps."""
    config = load_config(None, [f"placement.name={placement}"], environ={})
    estimators = Estimators.from_config(config)
    if reverse:
        estimators = replace(estimators, length=ReversedLength())
    controller = Controller(config, estimators, Stack.from_config(config))
    return float(steered(workload, plan, controller).sum())


@pytest.mark.parametrize(
    ("lengths", "plan"), [(STRONG_TAIL, EIGHT), (SIBLINGS_ALIKE, FEW_SLOTS)],
    ids=["strong tail", "siblings alike"],
)  # fmt: skip
def test_forecasts_in_reverse_order_cost_three_percent_at_most(
    lengths: Lengths, plan: FleetPlan
) -> None:
    ratios = []
    for seed in range(5):
        workload = made_up(lengths, seed)
        default_s = makespans("sticky_least_inflight", workload, plan, reverse=False)
        ratios.append(makespans("adaptive", workload, plan, reverse=True) / default_s)
    assert np.mean(ratios) < 1.03


def test_a_stream_is_replayed_to_its_end() -> None:
    config = load_config(None, ["placement.name=adaptive", "tick_s=0.5"], environ={})
    workload = small_workload(steps=3, groups=4, size=2)
    options = Options(inflight_groups=6, batch_groups=3)
    result = replay(workload, FleetPlan(PROFILE, 2), config, options)
    assert sum(step.finished for step in result.steps) == workload.trajectories


def test_what_may_act_is_told_once_a_step_with_its_probability() -> None:
    policy, told = Adaptive(), []

    def look(_: object) -> None:
        if (choice := policy.chosen()) is not None:
            told.append(choice)

    workload = made_up(replace(STRONG_TAIL, steps=3, groups=4), seed=0)
    steered(workload, FOUR, steered_by(policy), after_tick=look)
    assert len(told) == 3
    assert all(choice.stack in ARMS and 0 < choice.propensity <= 1 for choice in told)
    assert all(choice.reason and choice.expected["default"] == 0.0 for choice in told)
