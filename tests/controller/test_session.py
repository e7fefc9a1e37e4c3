"""The session through its public door, on a fleet without engines."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.controllers import steered_by
from support.fake_fleet import EOS, FakeFleet, reference

from steersman.controller.config import load_config
from steersman.controller.core import Controller, Verdict
from steersman.controller.results import Group, Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader, records
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Disposition
from steersman.estimators.observation import Observation
from steersman.mechanisms.fleet import Sampling
from steersman.policies.contract import Drafts, Stateless
from steersman.policies.decision import Action, Decision, DraftDecision, place

SAMPLING = Sampling(stop_token_ids=(EOS,))
CAP = 60
PROMPTS = [Prompt(f"p{i}", [3 + i, 4, 5]) for i in range(6)]


class Scripted(Stateless):
    """Places everything on r0 and then does `act` to whatever runs, once per trajectory."""

    def __init__(self, act: Callable[[Observation, int], Decision | None]) -> None:
        self._act = act
        self._acted: set[int] = set()

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        t = observation.trajectories
        home = int(observation.replicas.alive.argmax())
        decisions = [place(observation, r, home, "scripted", "") for r in observation.queued]
        for row in observation.running:
            if t.trajectory_id[row] not in self._acted and t.generated_tokens[row] > 0:
                decision = self._act(observation, int(row))
                if decision is not None:
                    self._acted.add(int(t.trajectory_id[row]))
                    decisions.append(decision)
        return decisions


class Drafting(Scripted):
    """Lets r1 draft 2 tokens, and what runs on r0 five of its own; then moves it there."""

    def __init__(self) -> None:
        super().__init__(self._move)
        self._told: set[int] = set()

    @staticmethod
    def _move(observation: Observation, row: int) -> Decision | None:
        drafts = observation.trajectories.draft_tokens[row] == 5
        return acting(Action.MIGRATE, "r1")(observation, row) if drafts else None

    def draft(self, observation: Observation, forecast: Forecast, rng: Any) -> Drafts:
        t, r = observation.trajectories, observation.replicas
        told: list[DraftDecision | Decision] = []
        if r.draft_tokens[1] != 2:
            told.append(DraftDecision("r1", 2, "drafting", "because"))
        for row in observation.running:
            trajectory_id = int(t.trajectory_id[row])
            if trajectory_id not in self._told:
                self._told.add(trajectory_id)
                more = {"row": int(row), "draft_tokens": 5}
                told.append(
                    Decision(trajectory_id, Action.SPECULATE, "drafting", "because", **more)
                )
        return told


def acting(action: Action, replica: str = "") -> Callable[[Observation, int], Decision]:
    def act(observation: Observation, row: int) -> Decision:
        trajectory_id = int(observation.trajectories.trajectory_id[row])
        return Decision(trajectory_id, action, "scripted", "because", replica)

    return act


def controller(policy: object | None = None, *overrides: str) -> Controller:
    said = ("tick_s=0.01", "guard.move_cooldown_s=0", *overrides)
    if policy is not None:
        return steered_by(policy, *said)
    return Controller.from_config(load_config(None, said, environ={}))


@asynccontextmanager
async def session(
    steering: Controller, fleet: FakeFleet | None = None, tokens: int = 1
) -> AsyncIterator[RolloutSession]:
    fleet = fleet if fleet is not None else FakeFleet(2)
    engine = asyncio.create_task(fleet.run(tokens))
    trace = TraceWriter(None)
    try:
        async with RolloutSession(fleet, steering, trace=trace) as opened:
            yield opened
    finally:
        engine.cancel()
    assert reader.check(trace.records) == []


def check_answers(groups: list[Group], group_size: int) -> None:
    for group in groups:
        prompt = next(p for p in PROMPTS if p.prompt_id == group.prompt_id)
        assert len(group.trajectories) == group_size
        for trajectory in group.trajectories:
            assert trajectory.token_ids == reference(prompt.token_ids, CAP)


@pytest.mark.parametrize("policy", ["round_robin", "sticky_least_inflight", "tail_planner"])
async def test_a_step_returns_each_prompt_once_with_its_whole_group(policy: str) -> None:
    async with session(controller(None, f"placement.name={policy}", "max_lag=0")) as s:
        groups = await s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING)
    assert [g.prompt_id for g in groups] == [p.prompt_id for p in PROMPTS]
    check_answers(groups, 4)
    assert {t.correctness for g in groups for t in g.trajectories} == {CorrectnessClass.EXACT}


@pytest.mark.parametrize("action", [Action.MIGRATE])
async def test_moved_trajectories_give_the_tokens_of_undisturbed_ones(action: Action) -> None:
    async with session(controller(Scripted(acting(action, "r1")))) as s:
        groups = await s.rollout(PROMPTS, 3, max_new_tokens=CAP, sampling=SAMPLING)
        assert s.counts().moves > 0
    check_answers(groups, 3)
    moved = [t for g in groups for t in g.trajectories if t.moves]
    assert moved
    assert {segment.replica for segment in moved[0].segments} == {"r0", "r1"}


async def test_what_a_trajectory_drafts_is_told_its_engine_and_goes_with_it_when_it_moves() -> None:
    fleet = FakeFleet(2, max_draft_tokens=8)
    async with session(controller(Drafting()), fleet) as s:
        groups = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
    check_answers(groups, 2)
    assert fleet.draft_tokens == {"r1": 2}
    assert set(fleet.speculated.values()) == {5}
    moved = [r for r in fleet.started if r.attempt_id.endswith("-1")]
    assert moved
    assert {r.draft_tokens for r in moved if r.attempt_id[:-1] + "0" in fleet.speculated} == {5}
    assert {r.prompt_key for r in fleet.started} == {p.key for p in PROMPTS}
    assert {r.group_id for r in fleet.started} == set(range(len(PROMPTS)))


async def test_in_shadow_drafts_are_recorded_and_no_engine_is_told() -> None:
    fleet = FakeFleet(2, max_draft_tokens=8)
    async with session(controller(Drafting(), "mode=shadow"), fleet) as s:
        await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
    assert fleet.draft_tokens == {}
    assert fleet.speculated == {}


async def test_isolation_moves_into_another_pool_and_refuses_the_same_one() -> None:
    for target, moves in (("r2", True), ("r1", False)):  # r2 is the tail pool of three replicas
        async with session(controller(Scripted(acting(Action.ISOLATE, target))), FakeFleet(3)) as s:
            groups = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
            assert (s.counts().moves > 0) == moves
        check_answers(groups, 2)


async def test_deferred_groups_come_back_in_the_next_step_with_segments_of_both_versions() -> None:
    async with session(controller(Scripted(acting(Action.DEFER)), "max_lag=1")) as s:
        first = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
        parked = s.counts().parked
        assert parked > 0
        await s.push_weights([], 1)
        second = await s.rollout(PROMPTS[:1], 2, max_new_tokens=CAP, sampling=SAMPLING)
        rest = await s.drain()
    groups = first + second + rest
    check_answers(groups, 2)
    assert len(groups) == len(PROMPTS) + 1
    late = [t for g in second + rest for t in g.trajectories if t.deferrals]
    assert {s.weight_version for t in late for s in t.segments} >= {0, 1}
    mixed = [t for t in late if len({s.weight_version for s in t.segments}) > 1]
    assert {t.correctness for t in mixed} == {CorrectnessClass.CORRECTED}
    assert max(t.lag for t in late) == 1


async def test_a_policy_that_carries_groups_over_returns_once_the_batch_is_full() -> None:
    async with session(controller(None, "placement.name=april")) as s:
        first = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING, groups_wanted=2)
        assert 2 <= len(first) < len(PROMPTS)
        assert s.counts().parked > 0
        await s.push_weights([], 1)
        rest = await s.rollout(PROMPTS[:1], 2, max_new_tokens=CAP, sampling=SAMPLING)
    assert len(first) + len(rest) == len(PROMPTS) + 1
    check_answers(first + rest, 2)


async def test_a_batch_that_is_full_is_cut_at_once_and_not_at_the_next_regular_tick() -> None:
    async with session(controller(None, "placement.name=april", "tick_s=60")) as s:
        first = await s.rollout(PROMPTS, 1, max_new_tokens=CAP, sampling=SAMPLING, groups_wanted=2)
        assert 2 <= len(first) < len(PROMPTS)
        rest = await s.rollout(PROMPTS[:1], 1, max_new_tokens=CAP, sampling=SAMPLING)
    assert len(first) + len(rest) == len(PROMPTS) + 1


async def test_a_push_begins_a_streams_next_batch_and_the_batch_size_is_told() -> None:
    seen: list[tuple[int, int]] = []

    def watch(observation: Observation, row: int) -> Decision:
        seen.append((observation.trainer.step, observation.trainer.groups_wanted))
        return place(observation, row, 0, "scripted", "first")

    async with session(controller(Scripted(watch))) as s:
        asked = {"max_new_tokens": CAP, "inflight_groups": 2, "sampling": SAMPLING}
        async for group in s.stream(PROMPTS, 1, batch_groups=3, **asked):
            await s.push_weights([], s.weight_version + 1)
            assert group.trajectories
        await s.rollout(PROMPTS[:1], 1, max_new_tokens=CAP, sampling=SAMPLING)
    steps = [step for step, _ in seen]
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
    assert {wanted for step, wanted in seen if step < s.step} <= {3}


async def test_nothing_is_deferred_beyond_the_lag_bound() -> None:
    async with session(controller(Scripted(acting(Action.DEFER)), "max_lag=0")) as s:
        groups = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
        assert s.counts().deferrals == 0
    check_answers(groups, 2)


async def test_a_parked_trajectory_that_became_too_old_is_replaced_by_a_fresh_one() -> None:
    async with session(controller(Scripted(acting(Action.DEFER)), "max_lag=1")) as s:
        await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
        await s.push_weights([], 1)
        await s.push_weights([], 2)
        late = await s.drain()
        assert s.counts().dispositions["expired"] > 0
    check_answers(late, 2)
    assert all(t.lag <= 1 for g in late for t in g.trajectories if t.deferrals)


async def test_a_restart_leaves_its_disposition_and_a_fresh_sample() -> None:
    async with session(controller(Scripted(acting(Action.RESTART)))) as s:
        groups = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
        restarted = s.counts().dispositions["restarted"]
    check_answers(groups, 2)
    fresh = [
        t for g in groups for t in g.trajectories if t.correctness is CorrectnessClass.EMPIRICAL
    ]
    assert len(fresh) == restarted > 0


async def test_a_stop_is_said_and_keeps_what_was_written() -> None:
    async with session(controller(Scripted(acting(Action.STOP)))) as s:
        groups = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
    stopped = [
        (g, t) for g in groups for t in g.trajectories if t.disposition is Disposition.STOPPED
    ]
    assert stopped
    for group, trajectory in stopped:
        prompt = next(p for p in PROMPTS if p.prompt_id == group.prompt_id)
        right = reference(prompt.token_ids, CAP)
        assert trajectory.token_ids == right[: len(trajectory.token_ids)]
        assert trajectory.correctness is CorrectnessClass.EMPIRICAL


async def test_a_replica_killed_in_mid_step_costs_nothing_but_time() -> None:
    fleet = FakeFleet(2)
    async with session(controller(None, "placement.name=sticky_least_inflight"), fleet) as s:
        step = asyncio.create_task(s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING))
        while not any(e.generated_tokens for e in s._ledger.executions.values()):
            await asyncio.sleep(0)
        fleet.kill("r0")
        groups = await step
    check_answers(groups, 4)
    assert len(groups) == len(PROMPTS)


async def test_a_fleet_that_is_all_dead_is_an_error_not_a_hang() -> None:
    fleet = FakeFleet(2)
    async with session(controller(), fleet) as s:
        step = asyncio.create_task(s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING))
        while not any(e.generated_tokens for e in s._ledger.executions.values()):
            await asyncio.sleep(0)
        fleet.kill("r0")
        fleet.kill("r1")
        with pytest.raises(FleetError, match="no replica is alive"):
            await step
        assert s.counts().unfinished == 0


@pytest.mark.parametrize("name", ["steersman-steering", "steersman-loop"])
async def test_a_killed_control_task_leaves_the_default_policy_in_charge(name: str) -> None:
    async with session(controller()) as s:
        step = asyncio.create_task(s.rollout(PROMPTS, 8, max_new_tokens=CAP, sampling=SAMPLING))
        await asyncio.sleep(0)
        next(task for task in asyncio.all_tasks() if task.get_name() == name).cancel()
        groups = await step
        assert s.controller_state.startswith("off: the")
        again = await s.rollout(PROMPTS[:2], 2, max_new_tokens=CAP, sampling=SAMPLING)
    check_answers(groups, 8)
    check_answers(again, 2)


class Broken(Stateless):
    """Does something wrong when asked for the n-th time."""

    def __init__(self, fault: Callable[[], None], after: int = 1) -> None:
        self._fault, self._left = fault, after
        self.inner = Scripted(lambda observation, row: None)

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        self._left -= 1
        if self._left < 0:
            self._fault()
        return self.inner.decide(observation, forecast, rng)


def raise_a_bug() -> None:
    raise ZeroDivisionError("a bug in a policy")


async def test_a_policy_that_raises_is_switched_off_and_the_step_completes() -> None:
    async with session(controller(Broken(raise_a_bug))) as s:
        groups = await s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING)
        more = await s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING)
        assert s.controller_state.startswith("off: 3 decisions in a row failed")
    check_answers(groups + more, 4)


async def test_a_decision_that_hangs_delays_the_step_by_less_than_a_second() -> None:
    hang = Broken(lambda: time.sleep(3), after=0)
    async with session(controller(hang, "decide_timeout_s=0.5")) as s:
        started_s = time.monotonic()
        groups = await s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING)
        assert time.monotonic() - started_s < 1.5
        assert s.controller_state.startswith("fail_open")
    check_answers(groups, 4)


async def test_a_trainer_that_blocks_the_event_loop_does_not_cost_it_its_controller() -> None:
    async with session(controller(None, "decide_timeout_s=0.2")) as s:
        for _ in range(2):
            step = asyncio.create_task(s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING))
            for _ in range(20):
                await asyncio.sleep(0)
            time.sleep(1.0)
            check_answers(await step, 4)
        assert s.controller_state.startswith("enforcing")


async def test_a_steering_task_that_hangs_is_noticed() -> None:
    steering = controller(None, "decide_timeout_s=0.3")
    async with session(steering) as s:

        async def never(*_: object) -> Verdict:
            await asyncio.Event().wait()
            raise AssertionError

        s._loop._decide = never  # type: ignore[method-assign, assignment]
        groups = await s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING)
        assert "silent" in s.controller_state
    check_answers(groups, 4)


async def test_the_kill_switch_hands_over_to_the_default(tmp_path: Any) -> None:
    switch = tmp_path / "off"
    async with session(controller(None, f"kill_switch_file={switch}")) as s:
        await s.rollout(PROMPTS, 1, max_new_tokens=CAP, sampling=SAMPLING)
        assert s.controller_state.startswith("enforcing")
        switch.touch()
        await s.rollout(PROMPTS, 1, max_new_tokens=CAP, sampling=SAMPLING)
        assert s.controller_state.startswith("off: kill switch")


async def test_shadow_decides_and_records_but_the_default_acts() -> None:
    shadow = controller(Scripted(acting(Action.MIGRATE, "r1")), "mode=shadow")
    async with session(shadow) as s:
        groups = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
        assert s.counts().moves == 0
        taken = [r for r in s.trace.records if isinstance(r, records.DecisionTaken)]
    check_answers(groups, 2)
    assert any(r.decision.action is Action.MIGRATE and not r.enforced for r in taken)
    assert all(r.decision.policy == "sticky_least_inflight" for r in taken if r.enforced)


async def test_a_policy_that_holds_everything_back_cannot_starve_an_idle_fleet() -> None:
    class Nothing(Stateless):
        def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
            return []

    async with session(controller(Nothing())) as s:
        groups = await s.rollout(PROMPTS, 2, max_new_tokens=CAP, sampling=SAMPLING)
    check_answers(groups, 2)


async def test_the_stream_yields_each_group_once_and_keeps_its_bound_in_flight() -> None:
    async with session(controller()) as s:
        groups = []
        async for group in s.stream(
            PROMPTS, 2, max_new_tokens=CAP, inflight_groups=2, sampling=SAMPLING
        ):
            groups.append(group)
            assert len(s._ledger.groups) <= 2
    assert sorted(g.prompt_id for g in groups) == [p.prompt_id for p in PROMPTS]
    check_answers(groups, 2)


async def test_weights_pushed_during_a_stream_replace_what_is_beyond_the_lag_bound() -> None:
    async with session(controller(None, "max_lag=1")) as s:
        lags = []
        version = 0
        async for group in s.stream(
            PROMPTS, 2, max_new_tokens=CAP, inflight_groups=3, sampling=SAMPLING
        ):
            check_answers([group], 2)
            lags += [t.lag for t in group.trajectories]
            version += 1
            await s.push_weights([], version)
    assert max(lags) <= version


async def test_leaving_a_stream_early_leaves_nothing_running() -> None:
    async with session(controller()) as s:
        stream = s.stream(PROMPTS, 4, max_new_tokens=CAP, inflight_groups=4, sampling=SAMPLING)
        await anext(stream)
        await stream.aclose()
        assert s.counts().unfinished == 0


async def test_a_cancelled_step_leaves_nothing_running_and_the_session_usable() -> None:
    async with session(controller()) as s:
        step = asyncio.create_task(s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING))
        await asyncio.sleep(0.02)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert s.counts().unfinished == 0
        check_answers(await s.rollout(PROMPTS, 1, max_new_tokens=CAP, sampling=SAMPLING), 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"prompts": []}, "no prompts were given"),
        ({"prompts": [Prompt("empty", [])]}, "prompt 'empty' is empty"),
        ({"prompts": [Prompt("long", [3] * 500)]}, "max_model_len of 512"),
        ({"group_size": 0}, "group_size is 0; valid: 1 or more"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; valid: 1 or more"),
    ],
)
async def test_bad_input_starts_nothing_and_says_what_is_valid(
    arguments: dict[str, Any], complaint: str
) -> None:
    async with session(controller()) as s:
        call = {"prompts": PROMPTS, "group_size": 2, "max_new_tokens": CAP, **arguments}
        with pytest.raises(InvalidInputError, match=complaint):
            await s.rollout(call.pop("prompts"), **call)
        assert s.counts().queued == 0
        with pytest.raises(InvalidInputError, match="not newer"):
            await s.push_weights([], 0)


async def test_an_engine_that_refuses_everything_fails_its_trajectories_in_the_end() -> None:
    fleet = FakeFleet(1)
    fleet.refuse = {"r0"}
    async with session(controller(), fleet) as s:
        groups = await s.rollout(PROMPTS[:1], 2, max_new_tokens=CAP, sampling=SAMPLING)
    assert {t.disposition for g in groups for t in g.trajectories} == {Disposition.FAILED}


async def test_recorded_observations_replay_to_the_same_decisions() -> None:
    overrides = ("trace.observations=true", "placement.name=tail_planner")
    async with session(controller(None, *overrides)) as s:
        await s.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=SAMPLING)
        live = s.trace.records
    replayed = controller(None, *overrides)
    taken = [r.decision for r in live if isinstance(r, records.DecisionTaken)]
    again = [
        decision
        for r in live
        if isinstance(r, records.ObservationRecorded)
        for decision in replayed.decide(records.record_to_observation(r)).decisions
    ]
    assert taken
    assert again == taken
