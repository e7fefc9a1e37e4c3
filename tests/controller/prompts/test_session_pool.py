"""A session that is given a pool: the prompt policy chooses, extends, filters, and learns."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from support.controllers import steered_by
from support.fake_fleet import FakeFleet
from support.pool_session import (
    CAP,
    POOL,
    SAMPLING,
    SIZE,
    coin,
    informative,
    pool_session,
    slow_coin,
    written,
)

from steersman.controller.prompts import admission
from steersman.controller.results import Group, Prompt, Trajectory
from steersman.controller.rolling import Rolling
from steersman.controller.session import RolloutSession
from steersman.controller.trace import records
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Observation
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place

STREAM = {"inflight_groups": 6, "batch_groups": 4, "sampling": SAMPLING}
SCORERS = [coin, slow_coin]


async def streamed(session: RolloutSession, groups: int, **options: Any) -> list[Group]:
    """The first so many groups of a stream, with a weight push after each batch."""
    got: list[Group] = []
    async with aclosing(session.admit(**{**STREAM, **options})) as stream:
        async for group in stream:
            got.append(group)
            if len(got) == groups:
                break
            if len(got) % 4 == 0:
                await session.push_weights([], session.weight_version + 1)
    return got


async def test_a_step_returns_chosen_prompts_with_size_and_terms_as_recorded() -> None:
    async with pool_session("prompts.name=prompt_value") as session:
        groups = await session.choose(8, sampling=SAMPLING)
        admitted = {r.group_id: r for r in written(session, records.GroupAdmitted)}
        drawn = written(session, records.PromptsChosen)
    assert len({group.prompt_id for group in groups}) == len(groups) >= 8
    for group in groups:
        record = admitted[group.group_id]
        assert len(group.trajectories) == record.size == SIZE
        assert group.terms.inclusion_probability == record.inclusion_probability < 1
        assert group.terms.weight == record.prompt_weight == group.weight
        assert group.terms.policy == record.prompt_policy == "prompt_value"
    assert np.mean([group.weight for group in groups]) == pytest.approx(1)
    assert [(r.chosen, r.pool, r.available) for r in drawn] == [(len(groups), 60, 60)]


@pytest.mark.parametrize("scorer", [None, *SCORERS])
async def test_a_stream_keeps_its_bound_and_gives_no_prompt_twice_at_a_time(scorer: Any) -> None:
    async with pool_session() as session:
        got = []
        async with aclosing(session.admit(**STREAM, scorer=scorer)) as stream:
            async for group in stream:
                got.append(group)
                open_prompts = [g.prompt.prompt_id for g in session._ledger.groups.values()]
                assert len(open_prompts) <= 6
                assert len(set(open_prompts)) == len(open_prompts)
                if len(got) == 50:
                    break
        assert session.counts().unfinished == 0
    assert len({group.prompt_id for group in got}) == 50  # uniform: each once per epoch


async def test_a_stream_that_outlives_its_pool_begins_it_again() -> None:
    async with pool_session(pool=POOL[:5]) as session:
        got = await streamed(session, 12, inflight_groups=8)
    assert {group.prompt_id for group in got} == {prompt.prompt_id for prompt in POOL[:5]}


async def test_an_unrewarded_stream_without_pushes_goes_on_as_well() -> None:
    async with pool_session(pool=POOL[:5]) as session:
        got = []
        async with aclosing(session.admit(**STREAM)) as stream:
            async for group in stream:
                got.append(group.prompt_id)
                if len(got) == 23:
                    break
    assert min(got.count(prompt.prompt_id) for prompt in POOL[:5]) >= 3


@pytest.mark.parametrize("scorer", SCORERS)
async def test_a_group_that_the_policy_extends_comes_once_with_all_its_samples(
    scorer: Any,
) -> None:
    async with pool_session("prompts.name=aero") as session:
        groups = await session.choose(9, scorer=scorer, sampling=SAMPLING)
        streamed_ = await streamed(session, 9, scorer=scorer)
        extended = written(session, records.GroupExtended)
    assert extended
    sizes = {record.group_id: record.size for record in extended}  # the last one holds
    assert len({group.group_id for group in groups + streamed_}) == 18
    for group in groups + streamed_:
        count = len(group.trajectories)
        assert count == sizes.get(group.group_id, SIZE // 2)
        assert [t.slot for t in group.trajectories] == list(range(count))
        prompt = next(p for p in POOL if p.prompt_id == group.prompt_id)
        assert list(group.rewards) == coin(prompt, group.trajectories)
        assert len(group.train) == count


@pytest.mark.parametrize("scorer", SCORERS)
async def test_filtered_groups_are_not_delivered_and_others_are_chosen_in_their_place(
    scorer: Any,
) -> None:
    async with pool_session("prompts.name=dynamic_sampling") as session:
        groups = await session.choose(6, scorer=scorer, sampling=SAMPLING)
        draws = written(session, records.PromptsChosen)
        verdicts = written(session, records.GroupSelected)
    assert len(groups) == 6
    assert all(informative(group.rewards) for group in groups)
    assert [draw.refill for draw in draws] == list(range(len(draws)))
    assert len(draws) > 1
    assert sum(verdict.accepted for verdict in verdicts) == 6
    assert len(verdicts) == len(written(session, records.GroupAdmitted))


async def test_a_stream_of_filtered_prompts_delivers_informative_groups_only() -> None:
    said = ("prompts.name=dynamic_sampling", "prompts.options.keep_surplus=true")
    async with pool_session(*said) as session:
        groups = await streamed(session, 20, scorer=slow_coin)
    assert all(informative(group.rewards) for group in groups)


def bypassed(session: RolloutSession) -> int:
    """Placements by the trainer's default rule, which steps in where the gate holds all back."""
    taken = written(session, records.DecisionTaken)
    return sum(
        record.enforced and record.decision.policy != "staleness_admission" for record in taken
    )


GATED = (
    "placement.name=staleness_admission",
    "prompts.name=dynamic_sampling",
    "prompts.options.keep_surplus=true",
    "max_lag=1",
)
"""With 4 groups in flight, a batch of 4 and a lag of 1 the budget is never used up by rights."""


async def test_filtered_groups_are_uncounted_in_the_staleness_budget() -> None:
    async with pool_session(*GATED) as session:
        groups = await streamed(session, 24, scorer=coin, inflight_groups=4)
        assert bypassed(session) == 0
    assert len(groups) == 24


async def test_filtered_groups_that_stay_counted_end_in_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Rolling.signal

    def forgetful(self: Rolling, normaliser: Any) -> Any:
        self.groups_filtered = None  # the mutant
        return told(self, normaliser)

    monkeypatch.setattr(Rolling, "signal", forgetful)
    async with pool_session(*GATED) as session:
        await streamed(session, 24, scorer=coin, inflight_groups=4)
        assert bypassed(session) > 0  # only the fail-safe lets it go on


async def test_rewards_that_come_late_are_learned_with_the_last_of_the_group() -> None:
    async with pool_session("prompts.name=uniform") as session:
        (group,) = await session.choose(1, sampling=SAMPLING)
        chooser = session._admission.chooser
        learned: list[Any] = []
        chooser.observe = lambda *told: learned.append(told)  # type: ignore[method-assign]
        for trajectory in group.trajectories[:-1]:
            session.reward(trajectory.trajectory_id, 0.5)
        assert learned == []
        session.reward(group.trajectories[-1].trajectory_id, 1.0)
    lengths = [len(t.token_ids) for t in group.trajectories]
    assert learned == [(group.prompt_id, [0.5, 0.5, 0.5, 1.0], 0, lengths)]


async def test_a_trainer_that_never_rewards_is_warned_once_and_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "MOST_AWAITING", 3)
    async with pool_session() as session:
        groups = await streamed(session, 12)
        books = session._admission
        assert len(books._awaiting) == 3
        assert len(books._group_of) == 3 * SIZE
        first = groups[0].trajectories[0].trajectory_id
        session.reward(first, 1.0)  # too late, and no error
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert repr(groups[0].prompt_id) in warnings[0].getMessage()


async def test_what_was_chosen_and_not_delivered_begins_first_after_a_resumption() -> None:
    async with pool_session("prompts.name=prompt_value") as session:
        before = await streamed(session, 6)
        async with aclosing(session.admit(**STREAM)) as stream:
            before.append(await anext(stream))
            state = session.prompt_state_dict()
        owed = [row[0] for row in state["owed"]]
        chosen = sum(record.chosen for record in written(session, records.PromptsChosen))
    assert len(owed) == chosen - len(before)
    async with pool_session("prompts.name=prompt_value") as again:
        again.load_prompt_state_dict(state)
        after = await streamed(again, len(owed))
        first = [r.prompt_id for r in written(again, records.GroupAdmitted)][: len(owed)]
    assert first == owed
    assert len(after) == len(owed)


async def test_a_pool_that_changed_meanwhile_owes_only_what_it_has() -> None:
    async with pool_session() as session:
        await streamed(session, 6)
        state = session.prompt_state_dict()
        gone = state["owed"][0][0]
        rest = [prompt for prompt in POOL if prompt.prompt_id != gone]
    async with pool_session(pool=rest) as again:
        again.load_prompt_state_dict(state)
        await streamed(again, 4)
        admitted = [r.prompt_id for r in written(again, records.GroupAdmitted)]
    assert gone not in admitted
    assert (
        admitted[: len(state["owed"]) - 1] == [row[0] for row in state["owed"][1:]][: len(admitted)]
    )


async def test_another_pool_in_mid_run_keeps_what_runs_and_chooses_from_the_new_one() -> None:
    async with pool_session(pool=POOL[:20]) as session:
        await streamed(session, 6)
        session.set_pool(POOL[10:30], SIZE, max_new_tokens=CAP)
        names = {prompt.prompt_id for prompt in POOL[10:30]}
        late = await streamed(session, 20)
    assert {group.prompt_id for group in late} <= names


async def test_leaving_a_stream_early_leaves_nothing_running_and_owes_what_was_begun() -> None:
    async with pool_session() as session:
        async with aclosing(session.admit(**STREAM, scorer=coin)) as stream:
            await anext(stream)
        assert session.counts().unfinished == 0
        begun = [r.prompt_id for r in written(session, records.GroupAdmitted)]
        answered = {r.group_id for r in written(session, records.GroupEnded) if r.complete}
        again = await session.choose(5, sampling=SAMPLING)
    assert len(answered) == 1
    assert {group.prompt_id for group in again} <= set(begun)


async def test_a_session_that_is_closed_amid_a_stream_leaves_no_task_behind() -> None:
    asked: list[str] = []

    async def never(prompt: Prompt, trajectories: Sequence[Trajectory]) -> list[float]:
        asked.append(prompt.prompt_id)
        await asyncio.Event().wait()
        raise AssertionError

    async with pool_session() as session:
        stream = session.admit(**STREAM, scorer=never)
        first = asyncio.ensure_future(anext(stream))
        while not asked:
            await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert session.counts().unfinished == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Parking(Stateless):
    """Places on r0; parks each trajectory of even number once."""

    def __init__(self) -> None:
        self._parked: set[int] = set()

    def decide(self, observation: Observation, forecast: Any, rng: Any) -> list[Decision]:
        t = observation.trajectories
        decisions = [place(observation, int(row), 0, "parking", "") for row in observation.queued]
        for row in observation.running:
            name = int(t.trajectory_id[row])
            if name % 2 == 0 and name not in self._parked:
                self._parked.add(name)
                decisions.append(Decision(name, Action.DEFER, "parking", "because"))
        return decisions


async def test_groups_that_were_put_off_come_with_a_later_step_and_are_not_chosen_meanwhile() -> (
    None
):
    control = steered_by(Parking(), "tick_s=0.01", "max_lag=3", "guard.move_cooldown_s=0")

    async def after_an_abort(fleet: FakeFleet) -> None:
        """Nothing is written before something was put off."""
        while not any(each.aborted for all_ in fleet._running.values() for each in all_):
            await asyncio.sleep(0)
        fleet.confirm("r0")
        await fleet.run(4)

    async with pool_session(controller=control, engine=after_an_abort) as session:
        first = await session.choose(6, scorer=coin, sampling=SAMPLING)
        parked = session.counts().parked
        second = await session.choose(6, scorer=coin, sampling=SAMPLING)
        third = await session.choose(6, scorer=coin, sampling=SAMPLING)
        left = await session.drain()
        chosen = [r.prompt_id for r in written(session, records.GroupAdmitted)]
    assert parked > 0
    got = [group.group_id for group in first + second + third + left]
    assert len(got) == len(set(got)) == len(chosen) == len(set(chosen))


def told(*rewards: float) -> Any:
    def scorer(prompt: Prompt, trajectories: Sequence[Trajectory]) -> list[float]:
        return list(rewards)

    return scorer


async def test_a_reward_that_the_scorer_does_not_know_is_left_out() -> None:
    nan = float("nan")
    async with pool_session() as session:
        (group,) = await session.choose(1, scorer=told(1.0, nan, 0.25, nan), sampling=SAMPLING)
        assert len(written(session, records.Rewarded)) == 2
    assert group.rewards[0] == 1.0
    assert np.isnan(group.rewards[1])


@pytest.mark.parametrize(
    ("scorer", "complaint"),
    [
        (told(1.0), r"told 1 rewards for the 4 answers to prompt 'p\d+'"),
        (told(1.0, 2.0, float("inf"), 0.0), r"infinite reward for prompt 'p\d+'"),
    ],
)
async def test_a_scorer_that_tells_nonsense_is_named_with_its_prompt(
    scorer: Any, complaint: str
) -> None:
    async with pool_session() as session:
        with pytest.raises(InvalidInputError, match=complaint):
            await session.choose(3, scorer=scorer, sampling=SAMPLING)
        assert session.counts().unfinished == 0
        with pytest.raises(InvalidInputError, match=complaint):
            await streamed(session, 3, scorer=scorer)
        assert session.counts().unfinished == 0
        assert len(await session.choose(3, scorer=coin, sampling=SAMPLING)) == 3


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda s: s.set_pool([], max_new_tokens=CAP), "no prompts were given"),
        (lambda s: s.set_pool([POOL[3], POOL[3]], max_new_tokens=CAP), "'p3' is in the pool twice"),
        (lambda s: s.set_pool([Prompt("e", [])], max_new_tokens=CAP), "prompt 'e' is empty"),
        (lambda s: s.observe("p999", [1.0], 0), "prompt 'p999'"),
        (lambda s: s.observe("p1", [float("inf")], 0), "prompt 'p1': a reward is infinite"),
        (lambda s: s.reward(0, float("nan")), "the reward of trajectory 0 of prompt 'p"),
    ],
)
async def test_bad_input_is_named(act: Any, complaint: str) -> None:
    async with pool_session() as session:
        await session.choose(1, sampling=SAMPLING)
        with pytest.raises(InvalidInputError, match=complaint):
            act(session)


async def test_without_a_pool_there_is_nothing_to_choose_from() -> None:
    async with pool_session() as session:
        session._chosen = None
        with pytest.raises(InvalidInputError, match="call set_pool first"):
            await session.choose(1)


async def test_a_policy_that_replays_earlier_groups_is_refused() -> None:
    async with pool_session("prompts.name=popo") as session:

        async def train() -> None:
            for _ in range(12):
                await session.choose(6, scorer=coin, sampling=SAMPLING)
                await session.push_weights([], session.weight_version + 1)

        with pytest.raises(InvalidInputError, match="popo trains on earlier groups again"):
            await train()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_prompt_policy_that_raises_costs_its_choice_and_no_step(
    times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool_session() as session:
        policy, left = session._admission.chooser.policy, [times]
        right = policy.choose

        def choose(request: Any, rng: Any) -> Any:
            left[0] -= 1
            if left[0] >= 0:
                raise ZeroDivisionError("a bug in a policy")
            return right(request, rng)

        policy.choose = choose  # type: ignore[method-assign]
        groups = []
        for _ in range(times + 1):
            groups.append(await session.choose(5, scorer=coin, sampling=SAMPLING))
            await session.push_weights([], session.weight_version + 1)
        drawn = written(session, records.PromptsChosen)
    assert [len(step) for step in groups] == [5] * (times + 1)
    by = [group.terms.policy for step in groups for group in step]
    assert by == ["any"] * (5 * times) + ["uniform" if times < 3 else "any"] * 5
    assert "ZeroDivisionError" in drawn[0].reason
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == times


@pytest.mark.parametrize("off", ["kill", "mode=off", "mode=shadow"])
async def test_a_controller_that_is_off_leaves_the_choice_to_chance(off: str) -> None:
    said = [off] if "=" in off else []
    async with pool_session("prompts.name=dynamic_sampling", *said) as session:
        if not said:
            session.kill_switch()
        groups = await session.choose(9, scorer=coin, sampling=SAMPLING)
    assert {group.terms.policy for group in groups} == {"any"}
    assert {group.terms.inclusion_probability for group in groups} == {9 / 60}
    assert not all(informative(group.rewards) for group in groups)  # nothing is filtered


async def test_fractional_rewards_and_groups_rolled_out_elsewhere_are_learned() -> None:
    async with pool_session("prompts.name=prompt_value") as session:
        before = repr(session.prompt_state_dict())
        session.observe("p1", [0.25, 0.5, 1.0, 0.0], 0)
        assert repr(session.prompt_state_dict()) != before
        await session.choose(2, sampling=SAMPLING)
