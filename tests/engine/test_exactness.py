"""Moving and parking trajectories changes nothing of what the model would have written."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.controllers import steered_by
from support.statistics import PERMUTATIONS, bigram_permutation, kolmogorov_smirnov

from steersman.controller.core import Controller
from steersman.controller.results import Group, Prompt, Trajectory
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Observation
from steersman.mechanisms.fleet import Attempt, AttemptRequest, Sampling
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

GREEDY = Sampling(temperature=0.0, ignore_eos=True)
PROMPTS = [Prompt(f"p{i}", [5 + i, 11, 7 + 2 * i, 3]) for i in range(12)]
VOCABULARY = 64


class Disturb(Stateless):
    """Moves each trajectory `moves` times to the other replica, or parks it once."""

    def __init__(self, moves: int = 0, park: bool = False) -> None:
        self.moves, self.park = moves, park

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        t, names = observation.trajectories, observation.replicas.names
        alive = np.flatnonzero(observation.replicas.alive).tolist()
        other = dict(zip(alive, alive[1:] + alive[:1], strict=True))
        out = [
            place(observation, row, alive[int(t.trajectory_id[row]) % len(alive)], "disturb", "")
            for row in observation.queued
        ]
        for row in observation.running:
            if self.park and t.deferred[row] == 0 and t.generated_tokens[row] > 0:
                out.append(Decision(int(t.trajectory_id[row]), Action.DEFER, "disturb", "park"))
            elif t.moves[row] < self.moves and t.generated_tokens[row] > 0:
                target = names[other[int(t.replica_row[row])]]
                out.append(
                    Decision(int(t.trajectory_id[row]), Action.MIGRATE, "disturb", "move", target)
                )
        return out


def disturbing(policy: Disturb) -> Controller:
    return steered_by(
        policy, "tick_s=0.01", "guard.move_cooldown_s=0", "guard.max_moves_per_tick=100000"
    )


async def rollout(
    fleet: Any, policy: Disturb, prompts: list[Prompt], group_size: int, **asked: Any
) -> list[Group]:
    groups, problems = await observed_rollout(fleet, policy, prompts, group_size, **asked)
    assert problems == []
    return groups


async def observed_rollout(
    fleet: Any, policy: Disturb, prompts: list[Prompt], group_size: int, **asked: Any
) -> tuple[list[Group], list[str]]:
    """The groups in the order they were asked for, and what the trace finds wrong."""
    trace = TraceWriter(None)
    version = fleet.stats(fleet.replicas[0].name).weight_version
    async with RolloutSession(
        fleet, disturbing(policy), trace=trace, weight_version=version
    ) as session:
        groups = await session.rollout(prompts, group_size, **asked)
        groups += await session.drain()
    return sorted(groups, key=lambda group: group.group_id), reader.check(trace.records)


def trajectories(groups: list[Group]) -> list[Trajectory]:
    return [t for group in groups for t in group.trajectories]


async def test_greedy_trajectories_moved_twice_or_parked_equal_undisturbed_ones(
    fleet: RayVllmFleet,
) -> None:
    asked = {"max_new_tokens": 400, "sampling": GREEDY}
    plain = trajectories(await rollout(fleet, Disturb(), PROMPTS, 1, **asked))
    again = trajectories(await rollout(fleet, Disturb(), PROMPTS, 1, **asked))
    moved = trajectories(await rollout(fleet, Disturb(moves=2), PROMPTS, 1, **asked))
    parked = trajectories(await rollout(fleet, Disturb(park=True), PROMPTS, 1, **asked))
    deterministic = [a.token_ids == b.token_ids for a, b in zip(plain, again, strict=True)]
    assert sum(deterministic) >= len(PROMPTS) - 1, "the engine itself is not deterministic"
    assert sum(t.moves == 2 for t in moved) >= len(PROMPTS) - 1
    assert sum(t.deferrals == 1 for t in parked) >= len(PROMPTS) - 1
    assert len({tuple(t.token_ids) for t in plain}) > 1
    for disturbed in (moved, parked):
        for same, a, b in zip(deterministic, plain, disturbed, strict=True):
            assert not same or a.token_ids == b.token_ids
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


class DropsATokenOnMigration:
    """A mutant of the migration: the target does not get the last token that is recorded."""

    def __init__(self, fleet: RayVllmFleet, prompt_tokens: int) -> None:
        self._fleet, self._prompt_tokens = fleet, prompt_tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        if len(request.token_ids) > self._prompt_tokens:
            shorter = request.token_ids[:-1]
            request = AttemptRequest(
                request.attempt_id, shorter, request.max_tokens, request.sampling, request.priority
            )
        return self._fleet.start(replica, request)


SAMPLES = 2048
"""Least trajectories in each arm of the comparison."""
ROUND = 128
"""Samples per prompt in one rollout."""


def p_values(
    model: Path, a: list[Trajectory], b: list[Trajectory], prompts: dict[str, Prompt]
) -> tuple[float, float]:
    """Smirnov on the trajectories' log-likelihoods, and a permutation test on their bigrams.

    The log-likelihood under the model, computed here and not by the engines, is the statistic most
    sensitive to a continuation that does not fit its prefix.
    """
    import torch
    from transformers import LlamaForCausalLM

    scorer = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)

    def likelihoods(sample: list[Trajectory]) -> list[float]:
        found: list[float] = []
        for start in range(0, len(sample), 256):
            part = sample[start : start + 256]
            ids = torch.tensor([[*prompts[t.prompt_id].token_ids, *t.token_ids] for t in part])
            head = ids.shape[1] - len(part[0].token_ids)
            with torch.no_grad():
                logprobs = scorer(ids).logits[:, :-1].log_softmax(-1)
            picked = logprobs.gather(2, ids[:, 1:, None])[:, head - 1 :, 0]
            found += picked.sum(1).tolist()
        return found

    return (
        kolmogorov_smirnov(likelihoods(a), likelihoods(b)),
        bigram_permutation([t.token_ids for t in a], [t.token_ids for t in b], VOCABULARY),
    )


async def samples(
    fleet: Any, policy: Disturb, prompts: list[Prompt], **asked: Any
) -> tuple[list[Trajectory], list[str]]:
    """At least `SAMPLES`, of which a quarter was moved if the policy moves at all.

    How many are caught before they end depends on the machine, so rollouts go on until there are
    enough; when that is does not depend on what was written.
    """
    found: list[Trajectory] = []
    problems: list[str] = []
    wanted = SAMPLES // 4 if policy.moves else 0
    while len(found) < SAMPLES or sum(t.moves > 0 for t in found) < wanted:
        groups, wrong = await observed_rollout(fleet, policy, prompts, ROUND, **asked)
        found += trajectories(groups)
        problems += wrong
    return found, problems


async def test_at_temperature_1_migration_leaves_the_distribution_and_a_mutant_does_not(
    fleet: RayVllmFleet, fleet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [Prompt(f"q{i}", [9 + i, 4, 20]) for i in range(4)]
    by_name = {prompt.prompt_id: prompt for prompt in prompts}
    asked: dict[str, Any] = {
        "max_new_tokens": 64,
        "sampling": Sampling(temperature=1.0, ignore_eos=True),
    }
    mutant_fleet = DropsATokenOnMigration(fleet, prompt_tokens=3)
    plain, _ = await samples(fleet, Disturb(), prompts, **asked)
    moved, sound = await samples(fleet, Disturb(moves=2), prompts, **asked)
    mutant, problems = await samples(mutant_fleet, Disturb(moves=2), prompts, **asked)
    assert sound == []
    assert problems, "the trace does not show that a token is missing"
    same = p_values(fleet_model, plain, moved, by_name)
    different = p_values(fleet_model, plain, mutant, by_name)
    with capsys.disabled():
        sys.stdout.write(f"\np-values of {SAMPLES} moved: {same}, of the mutant: {different}\n")
    assert same[0] > 1e-4
    assert same[1] > 1 / PERMUTATIONS
    assert different[0] < 1e-10
