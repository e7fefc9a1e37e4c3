"""EfficientRollout's switch: the cost model, the two guards, the ladder."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.forecast import AcceptanceForecast
from steersman.estimators.observation import TrainerSignal
from steersman.estimators.speculation import speed_up
from steersman.policies.speculation.roofline import Roofline

SLOTS = 64


class Engine:
    """One replica that does what the policy says."""

    def __init__(self, policy: Roofline, acceptance: float = 0.8) -> None:
        self.policy, self.acceptance = policy, acceptance
        self.tokens, self.drafted, self.accepted = 0, 0, 0

    def at(self, batch: int, version: int = 0, per_sequence_s: float = 0.0005) -> int:
        """What it drafts after a look at this batch."""
        replicas = replica_table(
            1,
            running=np.array([batch]),
            max_num_seqs=np.array([SLOTS]),
            max_draft_tokens=np.array([16]),
            draft_tokens=np.array([self.tokens]),
            weight_version=np.array([version]),
            drafted_at=np.array([[self.drafted]]),
            accepted_at=np.array([[self.accepted]]),
        )
        trainer = TrainerSignal(weight_version=version, step=version)
        seen = observation(trajectory_table([]), replicas, trainer=trainer)
        known = AcceptanceForecast(np.full((1, 8), self.acceptance), np.ones(1))
        forecast: Any = replace(forecast_of(seen, [], 0.012, per_sequence_s), acceptance=known)
        for d in self.policy.decide(seen, forecast, np.random.default_rng(0)):
            self.tokens = d.draft_tokens
        return self.tokens

    def step(self, version: int, share: float) -> int:
        """A step whose drafts are accepted to `share`; what is drafted in its tail."""
        self.at(SLOTS, version)
        tokens = self.at(1, version)
        self.drafted += 1000
        self.accepted += round(1000 * share)
        return tokens


def test_it_stays_off_while_bound_by_compute_and_goes_on_where_the_speed_up_is_enough() -> None:
    engine = Engine(Roofline())
    on_at = next(b for b in range(SLOTS, 0, -1) if engine.at(b) > 0)
    speed = speed_up(
        np.full((2, 5), 0.8),
        np.array([on_at, on_at + 1.0]),
        np.full(2, 0.012),
        np.full(2, 5e-4),
        0.0,
    )[:, 5]
    assert speed[0] >= 1.05 > speed[1]


def test_dearer_verification_or_drafting_keeps_it_off() -> None:
    """r and v grow, the same batch no longer pays."""
    for policy, cost in (
        (Roofline(), 0.05),
        (Roofline(draft_token_s=0.012), 0.0005),
        (Roofline(compute_token_s=0.02), 0.0005),
    ):
        cheap, dear = Engine(Roofline()), Engine(policy)
        cheap.at(SLOTS), dear.at(SLOTS)
        assert cheap.at(2) > 0
        assert dear.at(2, per_sequence_s=cost) == 0


def test_with_the_compute_known_verifying_is_free_until_it_is_bound_by_it() -> None:
    """Six tokens of each of b sequences cost nothing while 6 b compute < fixed: b up to 20."""
    engine = Engine(Roofline(compute_token_s=0.0001))
    engine.at(SLOTS, per_sequence_s=0.0)
    assert engine.at(20, per_sequence_s=0.0) > 0


def test_a_batch_that_never_filled_is_no_tail() -> None:
    engine = Engine(Roofline())
    assert [engine.at(b) for b in (1, 2, 4, 1)] == [0] * 4
    engine.at(SLOTS // 2 + 1)
    assert engine.at(1) == 5


def test_it_stays_on_when_the_batch_rises_again_and_off_after_new_weights() -> None:
    engine = Engine(Roofline())
    assert [engine.at(b) for b in (SLOTS, 1, SLOTS, SLOTS)] == [0, 5, 5, 5]
    assert engine.at(SLOTS, version=1) == 0
    assert engine.at(1, version=1) == 5


def test_the_ladder_is_climbed_after_two_versions_of_high_acceptance() -> None:
    engine = Engine(Roofline())
    assert [engine.step(v, 0.95) for v in range(9)] == [5, 5, 7, 7, 9, 9, 11, 11, 11]


def test_one_low_version_in_between_starts_the_climb_anew_and_two_descend() -> None:
    engine = Engine(Roofline())
    shares = [0.95, 0.95, 0.95, 0.9, 0.95, 0.8, 0.8, 0.9]
    assert [engine.step(v, share) for v, share in enumerate(shares)] == [5, 5, 7, 7, 7, 7, 7, 5]


def test_a_ladder_that_does_not_rise_is_refused() -> None:
    with pytest.raises(ValueError, match="ascending"):
        Roofline(ladder=(5, 5))
