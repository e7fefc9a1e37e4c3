"""A live session whose policy looks ahead: advised, recorded, and unharmed when it fails."""

import asyncio
from typing import Any

import pytest
from support.controllers import steered_by
from support.fake_fleet import EOS, FakeFleet
from support.following import Follows

from steersman.controller.horizon.runner import Question
from steersman.controller.results import Group, Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader, records
from steersman.controller.trace.writer import TraceWriter
from steersman.mechanisms.fleet import Sampling
from steersman.policies.adaptive.plans import PLANS

PROMPTS = [Prompt(f"p{i}", [3 + i, 4, 5]) for i in range(8)]


async def rolled_out(policy: Follows) -> tuple[list[Group], TraceWriter]:
    """One step on two replicas of two slots, under a policy that holds the rest back."""
    fleet, trace = FakeFleet(2, max_num_seqs=2), TraceWriter(None)
    said = ("tick_s=0.01", "trace.observations=true", "horizon.every_s=0.02", "horizon.delay_s=0")
    engine = asyncio.create_task(fleet.run())
    try:
        async with RolloutSession(fleet, steered_by(policy, *said), trace=trace) as session:
            sampling = Sampling(stop_token_ids=(EOS,))
            groups = await session.rollout(PROMPTS, 8, max_new_tokens=200, sampling=sampling)
    finally:
        engine.cancel()
    assert reader.check(trace.records) == []
    return groups, trace


def answered(groups: list[Group]) -> int:
    return sum(len(group.trajectories) for group in groups)


async def test_a_live_policy_is_advised_and_what_it_saw_is_in_the_trace() -> None:
    policy = Follows(PLANS[1], PLANS)
    groups, trace = await rolled_out(policy)
    assert answered(groups) == 64
    assert policy.seen
    recorded = [
        records.record_to_observation(record).advice
        for record in trace.records
        if isinstance(record, records.ObservationRecorded) and record.advice is not None
    ]
    assert [advice.asked_s for advice in recorded if advice] == [a.asked_s for _, a in policy.seen]


async def test_a_look_ahead_that_fails_leaves_the_ticks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(question: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(Question, "answer", fail)
    policy = Follows(PLANS[1], PLANS)
    groups, trace = await rolled_out(policy)
    assert answered(groups) == 64
    assert policy.seen == []
    states = [
        record.state for record in trace.records if isinstance(record, records.ControllerState)
    ]
    assert set(states) <= {"enforcing"}
