"""What drafts earned is counted as the engines counted it, position by position."""

from dataclasses import replace

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.forecast import AcceptanceForecast, Forecast
from steersman.estimators.observation import Observation
from steersman.policies.speculation._evidence import PROOF, Evidence

DEPTH = 4


class Engine:
    """One engine; a draft of which `accepted` tokens hold."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.iterations = 0
        self.asked, self.drafted, self.accepted = np.zeros((3, DEPTH), dtype=np.int64)
        self.look()

    def seen(self) -> Observation:
        replicas = replica_table(
            1,
            max_draft_tokens=np.array([DEPTH]),
            iterations=np.array([self.iterations]),
            busy_s=np.array([0.01 * self.iterations]),
            sequences_run=np.array([1.0 * self.iterations]),
            asked_at=self.asked[None].copy(),
            drafted_at=self.drafted[None].copy(),
            accepted_at=self.accepted[None].copy(),
        )
        return observation(trajectory_table([]), replicas)

    def forecast(self) -> Forecast:
        hopeless = AcceptanceForecast(np.zeros((1, DEPTH)), np.zeros(1))
        return replace(forecast_of(self.seen(), [], 0.01, 0.001), acceptance=hopeless)

    def look(self) -> None:
        self.evidence.follow(self.seen(), self.forecast())

    def run(self, asked: int, found: int, accepted: int, iterations: int) -> None:
        self.iterations += iterations
        self.asked[:asked] += iterations
        self.drafted[:found] += iterations
        self.accepted[:accepted] += iterations
        self.look()

    @property
    def believed(self) -> np.ndarray:
        return self.evidence.acceptance(self.forecast())[0]


def test_what_the_drafter_did_not_find_counts_as_refused() -> None:
    engine = Engine()
    engine.run(asked=2, found=1, accepted=1, iterations=200)
    assert engine.believed[:2] == pytest.approx([1.0, 0.0], abs=0.01)


def test_of_an_engine_that_does_not_tell_what_it_was_asked_what_it_found_counts() -> None:
    engine = Engine()
    engine.run(asked=0, found=1, accepted=1, iterations=200)
    assert engine.evidence.proven
    assert engine.believed[0] == pytest.approx(1.0, abs=0.01)


def test_what_deep_drafts_gave_is_not_forgotten_while_shallow_ones_are_made() -> None:
    engine = Engine()
    engine.run(asked=4, found=4, accepted=4, iterations=200)
    for _ in range(20):
        engine.run(asked=1, found=1, accepted=1, iterations=200)
    assert engine.believed[3] > 0.99


def test_new_weights_leave_as_many_drafts_of_each_position_as_a_probe_has() -> None:
    engine = Engine()
    engine.run(asked=4, found=4, accepted=4, iterations=200)
    engine.run(asked=1, found=1, accepted=1, iterations=4000)
    engine.evidence.forget(PROOF)
    assert engine.evidence.proven
    assert engine.evidence.tried.tolist() == pytest.approx([PROOF] * DEPTH)


def test_drafts_that_fail_are_believed_over_what_was_kept_of_older_weights() -> None:
    engine = Engine()
    engine.run(asked=4, found=4, accepted=4, iterations=400)
    engine.evidence.forget(PROOF)
    engine.run(asked=4, found=4, accepted=0, iterations=50)
    assert engine.believed[0] < 0.1
