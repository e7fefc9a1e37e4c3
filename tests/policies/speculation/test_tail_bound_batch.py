"""The rules on a simulated replica with a long tail: each ends the batch sooner than none."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.plugins import load, names
from steersman.estimators.forecast import AcceptanceForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import ONLY_AS_REPLICA, Observation
from steersman.estimators.speculation import expected_tokens
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import ReplicaSpec, Trajectories
from steersman.policies.contract import SpeculationPolicy
from steersman.policies.decision import DraftDecision

SLOTS, TICK_S, DEEPEST = 64, 0.5, 8
FIXED_S, SEQUENCE_S, ACCEPTED = 0.012, 0.001, 0.75
EXPECTED = expected_tokens(np.full((1, DEEPEST), ACCEPTED))[0]


class Batch:
    """`SLOTS` trajectories of heavy-tailed lengths, run to the end under a policy."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.lengths = np.exp(rng.normal(5.5, 1.0, SLOTS)).round() + 1
        self.lengths[0] = 4000.0
        self.core = SimulatedCore()
        spec = ReplicaSpec(fixed_s=FIXED_S, sequence_s=SEQUENCE_S, max_num_seqs=SLOTS)
        self.core.add_replica(spec)
        self.rows = self.core.add(Trajectories.of_one_turn(self.lengths.tolist()))
        self.core.submit(self.rows, np.zeros(SLOTS, dtype=np.int64))
        self.tokens, self.sequences = 0, 0.0
        self.drafted, self.accepted = np.zeros((2, DEEPEST))

    def draft(self, tokens: int) -> None:
        self.tokens = tokens
        self.core.set_speculation(0, float(EXPECTED[tokens]), tokens + 1.0)

    def seen(self, tick: int) -> Observation:
        state, written = self.core.state(), self.core.generated_tokens()
        new = float(state.sequences_run[0]) - self.sequences
        self.sequences += new
        deep = np.arange(DEEPEST) < self.tokens
        self.drafted += new * deep
        self.accepted += new * deep * ACCEPTED ** np.arange(1, DEEPEST + 1)
        left = written < self.lengths - 1e-6
        return observation(
            trajectory_table(
                np.where(left, int(Phase.RUNNING), int(Phase.ENDED)).tolist(),
                replica_row=np.where(left, 0, -1),
                generated_tokens=written.astype(np.int64),
                draft_tokens=np.full(SLOTS, ONLY_AS_REPLICA),
            ),
            replica_table(
                1,
                running=state.running.astype(np.int64),
                max_num_seqs=np.array([SLOTS]),
                draft_tokens=np.array([self.tokens]),
                max_draft_tokens=np.array([DEEPEST]),
                iterations=state.iterations.astype(np.int64),
                busy_s=state.busy_s,
                sequences_run=state.sequences_run,
                accepted_at=np.rint(self.accepted[None]).astype(np.int64),
                drafted_at=np.rint(self.drafted[None]).astype(np.int64),
            ),
            now_s=tick * TICK_S,
            tick=tick,
        )

    def run_s(self, policy: SpeculationPolicy) -> float:
        """Seconds to the last end."""
        tick, rng = 0, np.random.default_rng(0)
        known = AcceptanceForecast(np.full((1, DEEPEST), ACCEPTED), np.ones(1))
        while self.core.inflight()[0]:
            seen = self.seen(tick)
            left = np.maximum(self.lengths - self.core.generated_tokens(), 0.0)
            forecast = forecast_of(seen, left.tolist(), FIXED_S, SEQUENCE_S)
            for d in policy.decide(seen, replace(forecast, acceptance=known), rng):
                assert isinstance(d, DraftDecision)
                self.draft(d.draft_tokens)
            tick += 1
            self.core.advance(tick * TICK_S)
        return float(self.core.state().busy_s[0])


@cache
def takes_s(name: str) -> float:
    return Batch().run_s(load("policies.speculation", name)())


@cache
def always_s(tokens: int) -> float:
    batch = Batch()
    batch.draft(tokens)
    return batch.run_s(load("policies.speculation", "unchanged")())


@pytest.mark.parametrize("name", [n for n in names("policies.speculation") if n != "unchanged"])
def test_every_rule_shortens_a_batch_that_its_tail_holds_up(name: str) -> None:
    assert takes_s(name) < 0.75 * takes_s("unchanged")


@pytest.mark.parametrize("name", [n for n in names("policies.speculation") if n != "unchanged"])
def test_every_rule_beats_drafting_as_much_as_possible_from_the_start(name: str) -> None:
    """While the batch is large a verification of nine tokens costs most of what nine would."""
    assert takes_s(name) < always_s(DEEPEST)
