"""Isolate, restart and stop, carried out on real engines in one step."""

from typing import Any

import pytest
from support.controllers import steered_by
from support.fake_fleet import EOS

from steersman.controller.results import Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Disposition
from steersman.estimators.observation import Observation
from steersman.mechanisms.fleet import Sampling
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

PROMPTS = [Prompt(f"p{i}", [5 + i, 11, 7 + 2 * i, 3]) for i in range(4)]
CAP = 700
ACTIONS = (Action.ISOLATE, Action.RESTART, Action.STOP)


class OneOfEach(Stateless):
    """By id: isolates, restarts or stops each trajectory once, and leaves every fourth alone."""

    def __init__(self, tail: str) -> None:
        self._tail = tail
        self._done: set[int] = set()

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        t, replicas = observation.trajectories, observation.replicas
        home = next(
            row for row, pool in enumerate(replicas.pools) if pool == "bulk" and replicas.alive[row]
        )
        out = [place(observation, row, home, "each", "") for row in observation.queued]
        for row in observation.running:
            trajectory_id = int(t.trajectory_id[row])
            fresh = t.restarts[row] == 0 and trajectory_id not in self._done
            if fresh and t.generated_tokens[row] > 0 and trajectory_id % 4 < len(ACTIONS):
                self._done.add(trajectory_id)
                action = ACTIONS[trajectory_id % 4]
                target = self._tail if action is Action.ISOLATE else ""
                out.append(Decision(trajectory_id, action, "each", "its turn", target))
        return out


async def test_isolate_restart_and_stop_do_what_they_say(fleet: RayVllmFleet) -> None:
    tail = await fleet.add_replica(pool="tail")
    overrides = ["tick_s=0.02", "guard.move_cooldown_s=0", "guard.max_moves_per_tick=100"]
    controller = steered_by(OneOfEach(tail), *overrides)
    trace = TraceWriter(None)
    sampling = Sampling(ignore_eos=True, stop_token_ids=(EOS,))
    async with RolloutSession(fleet, controller, trace=trace) as session:
        groups = await session.rollout(PROMPTS, 4, max_new_tokens=CAP, sampling=sampling)
        counts = session.counts()
    await fleet.kill_replica(tail)

    assert reader.check(trace.records) == []
    assert counts.dispositions == {"truncated": 12, "restarted": 4, "stopped": 4}
    answers = {t.slot: [] for t in groups[0].trajectories}
    for group in groups:
        for trajectory in group.trajectories:
            answers[trajectory.slot].append(trajectory)
    for trajectory in answers[0]:
        assert {s.replica for s in trajectory.segments} >= {tail}
        assert len(trajectory.segments) == 2
        assert trajectory.correctness is CorrectnessClass.EXACT
    for trajectory in answers[1]:
        assert len(trajectory.token_ids) == CAP
        assert trajectory.correctness is CorrectnessClass.EMPIRICAL
    for trajectory in answers[2]:
        assert trajectory.disposition is Disposition.STOPPED
        assert 0 < len(trajectory.token_ids) < CAP
        assert trajectory.correctness is CorrectnessClass.EMPIRICAL
    for trajectory in answers[3]:
        assert trajectory.disposition is Disposition.TRUNCATED
        assert trajectory.correctness is CorrectnessClass.EXACT
